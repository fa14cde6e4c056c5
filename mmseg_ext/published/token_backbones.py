"""Classifiers on tokens: DeepViT of zhoudaquan/dvit_repo, and EAMLP of MenghaoGuo/EANet.

DeepViT is published with and without re-attention, EAMLP in the folder `EAMLP`.
"""

import math
from fractions import Fraction

import torch
from torch import Tensor

from mmseg_ext.backbones.deepvit import PATCH, DeepViT
from mmseg_ext.backbones.eamlp import EAMLP, sinusoidal_positions
from mmseg_ext.published.key_map import StateDict, blocks_in, check_keys, entry, rename_keys

_MIXING = "attn.reatten_matrix.weight"
# An exponential moving average over 10^5 steps in float32 moves a constant by about 1e-4.
_POSITION_TOLERANCE = 1e-3


def convert_deepvit(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the backbone's state dict; with `classifier`, that of a model with `num_classes`.

    Build `DeepViT` with the arch and the `img_size` of the file, and with `re_attention=False` if
    the file has no re-attention.

    Raises:
        ValueError: for positions that form no square grid, and listing unmapped and missing keys.
    """
    converted = _kept(state_dict, classifier, "patch_embed")
    mixing = [i for i in blocks_in(converted, "blocks") if f"blocks.{i}.{_MIXING}" in converted]
    with torch.device("meta"):
        model = DeepViT(
            arch=_deepvit_arch(converted, mixing),
            img_size=_infer_img_size(entry(converted, "pos_embed")),
            re_attention=bool(mixing),
            num_classes=len(entry(converted, "head.weight")) if classifier else None,
        )
    return check_keys(converted, model)


def convert_eamlp(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the backbone's state dict; with `classifier`, that of a model with `num_classes`.

    If the file has a `pos_embed`, it is compared with the sinusoidal table and dropped.

    Raises:
        ValueError: if `pos_embed` is another table, and listing unmapped and missing keys.
    """
    converted = _kept(state_dict, classifier, "tokens_to_token")
    if "pos_embed" in converted:
        _check_positions(converted.pop("pos_embed"))
    with torch.device("meta"):
        model = EAMLP(
            arch=_eamlp_arch(converted),
            num_classes=len(entry(converted, "head.weight")) if classifier else None,
        )
    return check_keys(converted, model)


def _kept(state_dict: StateDict, classifier: bool, stem: str) -> StateDict:
    """The entries of a backbone with a stem of this name, with or without its classifier's."""
    kept = rf"(cls_token|pos_embed|(?:{stem}|blocks|norm)\..+)"
    head = r"(head\.(?:weight|bias))"
    return rename_keys(state_dict, [(kept, r"\1"), (head, r"\1" if classifier else None)])


def _infer_img_size(pos_embed: Tensor) -> int:
    patches = pos_embed.shape[1] - 1
    side = math.isqrt(patches)
    if side * side != patches:
        raise ValueError(f"pos_embed has {patches} patch positions, which form no square grid")
    return side * PATCH


def _check_positions(table: Tensor) -> None:
    expected = sinusoidal_positions(table.shape[-2], table.shape[-1])
    if table.shape != expected.shape:
        raise ValueError(f"pos_embed has the shape {tuple(table.shape)}, not (1, N, C)")
    difference = (table.float() - expected).abs().max()
    if difference > _POSITION_TOLERANCE:
        raise ValueError(
            f"pos_embed is not the sinusoidal table: it differs by up to {difference:.3g}"
        )


def _deepvit_arch(state_dict: StateDict, mixing: list[int]) -> dict:
    """Read the architecture's widths and depth from the checkpoint's shapes."""
    embed_dims = entry(state_dict, "cls_token").shape[-1]
    depth = max(blocks_in(state_dict, "blocks"), default=0) + 1
    return {
        "embed_dims": embed_dims,
        "depth": depth,
        # Without re-attention no shape depends on the number of heads, so any number fits.
        "num_heads": len(state_dict[f"blocks.{mixing[0]}.{_MIXING}"]) if mixing else 1,
        "mlp_ratio": Fraction(len(entry(state_dict, "blocks.0.mlp.fc1.weight")), embed_dims),
        "conv_patch_embed": "patch_embed.conv1.weight" in state_dict,
        "re_attention_blocks": depth - mixing[0] if mixing else None,
    }


def _eamlp_arch(state_dict: StateDict) -> dict:
    """Read the architecture's widths and depth from the checkpoint's shapes."""
    embed_dims = entry(state_dict, "cls_token").shape[-1]
    return {
        "embed_dims": embed_dims,
        "depth": max(blocks_in(state_dict, "blocks"), default=0) + 1,
        "num_heads": embed_dims // entry(state_dict, "blocks.0.attn.linear_0.weight").shape[1],
        "mlp_ratio": len(entry(state_dict, "blocks.0.mlp.fc1.weight")) / embed_dims,
    }
