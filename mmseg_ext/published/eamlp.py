"""EAMLP classifiers that MenghaoGuo/EANet publishes in its folder `EAMLP`."""

import torch
from torch import Tensor

from mmseg_ext.backbones.eamlp import EAMLP, sinusoidal_positions
from mmseg_ext.published.key_map import StateDict, blocks_in, check_keys, entry, rename_keys

_KEPT = r"(cls_token|(?:tokens_to_token|blocks|norm)\..+)"
_HEAD = r"(head\.(?:weight|bias))"
# An exponential moving average over 10^5 steps in float32 moves a constant by about 1e-4.
_POSITION_TOLERANCE = 1e-3


def convert_eamlp(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the backbone's state dict; with `classifier`, that of a model with `num_classes`.

    If the file has a `pos_embed`, it is compared with the sinusoidal table and dropped.

    Raises:
        ValueError: if `pos_embed` is another table, and listing unmapped and missing keys.
    """
    rules = [(_KEPT, r"\1"), (_HEAD, r"\1" if classifier else None), (r"pos_embed", None)]
    converted = rename_keys(state_dict, rules)
    if "pos_embed" in state_dict:
        _check_positions(state_dict["pos_embed"])
    with torch.device("meta"):
        model = EAMLP(
            arch=_infer_arch(converted),
            num_classes=len(entry(converted, "head.weight")) if classifier else None,
        )
    return check_keys(converted, model)


def _check_positions(table: Tensor) -> None:
    expected = sinusoidal_positions(table.shape[-2], table.shape[-1])
    if table.shape != expected.shape:
        raise ValueError(f"pos_embed has the shape {tuple(table.shape)}, not (1, N, C)")
    difference = (table.float() - expected).abs().max()
    if difference > _POSITION_TOLERANCE:
        raise ValueError(
            f"pos_embed is not the sinusoidal table: it differs by up to {difference:.3g}"
        )


def _infer_arch(state_dict: StateDict) -> dict:
    """Read the architecture's widths and depth from the checkpoint's shapes."""
    embed_dims = entry(state_dict, "cls_token").shape[-1]
    return {
        "embed_dims": embed_dims,
        "depth": max(blocks_in(state_dict, "blocks"), default=0) + 1,
        "num_heads": embed_dims // entry(state_dict, "blocks.0.attn.linear_0.weight").shape[1],
        "mlp_ratio": len(entry(state_dict, "blocks.0.mlp.fc1.weight")) / embed_dims,
    }
