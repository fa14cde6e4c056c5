"""DeepViT of zhoudaquan/dvit_repo (1ccb152) and EAMLP of MenghaoGuo/EANet (59c03cb, `EAMLP`)."""

import math
from fractions import Fraction

import torch

from mmseg_ext.backbones.deepvit import PATCH, DeepViT
from mmseg_ext.backbones.eamlp import EAMLP, sinusoidal_positions
from mmseg_ext.converters.key_map import (
    StateDict,
    blocks_in,
    check_keys,
    count_classes,
    entry,
    rename_keys,
)

DEFAULT_CFGS = {"deepvit": DeepViT.default_cfgs[""], "eamlp": EAMLP.default_cfgs["7"]}
_MIXING = "attn.reatten_matrix.weight"
# An exponential moving average over 10^5 steps in float32 moves a constant by about 1e-4.
_POSITION_TOLERANCE = 1e-3


def convert_deepvit(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `DeepViT`, with `num_classes` if `classifier` is true.

    Build `DeepViT` with the arch and `img_size` of the file, and with `re_attention=False` if the
    file has no re-attention.

    Raises:
        ValueError: as all converters, and for positions that are not a square grid.
    """
    converted = _select(state_dict, classifier, "patch_embed")
    mixing = [i for i in blocks_in(converted, "blocks") if f"blocks.{i}.{_MIXING}" in converted]
    patches = entry(converted, "pos_embed").shape[1] - 1
    side = math.isqrt(patches)
    if side * side != patches:
        raise ValueError(f"pos_embed: {patches} patch positions are not a square grid")
    with torch.device("meta"):
        model = DeepViT(
            arch=_deepvit_arch(converted, mixing),
            img_size=side * PATCH,
            re_attention=bool(mixing),
            num_classes=count_classes(converted, "head.weight", classifier),
        )
    return check_keys(converted, model)


def convert_eamlp(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `EAMLP`, with `num_classes` if `classifier` is true.

    If the file has a `pos_embed`, it is compared with the sinusoidal table and dropped.

    Raises:
        ValueError: as all converters, and if `pos_embed` is another table.
    """
    converted = _select(state_dict, classifier, "tokens_to_token")
    if "pos_embed" in converted:
        table = converted.pop("pos_embed")
        expected = sinusoidal_positions(table.shape[-2], table.shape[-1])
        if table.shape != expected.shape:
            raise ValueError(f"pos_embed: shape {tuple(table.shape)} is not (1, N, C)")
        difference = (table.float() - expected).abs().max()
        if difference > _POSITION_TOLERANCE:
            raise ValueError(f"pos_embed: differs by {difference:.3g} from the sinusoidal table")
    embed_dims = entry(converted, "cls_token").shape[-1]
    arch = {
        "embed_dims": embed_dims,
        "depth": max(blocks_in(converted, "blocks"), default=0) + 1,
        "num_heads": embed_dims // entry(converted, "blocks.0.attn.linear_0.weight").shape[1],
        "mlp_ratio": len(entry(converted, "blocks.0.mlp.fc1.weight")) / embed_dims,
    }
    with torch.device("meta"):
        model = EAMLP(
            arch=arch,
            num_classes=count_classes(converted, "head.weight", classifier),
        )
    return check_keys(converted, model)


def _select(state_dict: StateDict, classifier: bool, stem: str) -> StateDict:
    """Return the entries of the backbone, and with `classifier` of its head."""
    kept = rf"(cls_token|pos_embed|(?:{stem}|blocks|norm)\..+)"  # blocks.3.norm1.weight
    head = r"(head\.(?:weight|bias))"
    return rename_keys(state_dict, [(kept, r"\1"), (head, r"\1" if classifier else None)])


def _deepvit_arch(state_dict: StateDict, mixing: list[int]) -> dict:
    """Return the architecture from the shapes of the checkpoint."""
    embed_dims = entry(state_dict, "cls_token").shape[-1]
    depth = max(blocks_in(state_dict, "blocks"), default=0) + 1
    num_heads, re_attention_blocks = 1, None
    if mixing:  # without re-attention, no shape depends on the number of heads
        num_heads = len(state_dict[f"blocks.{mixing[0]}.{_MIXING}"])
        re_attention_blocks = depth - mixing[0]
    return {
        "embed_dims": embed_dims,
        "depth": depth,
        "num_heads": num_heads,
        "mlp_ratio": Fraction(len(entry(state_dict, "blocks.0.mlp.fc1.weight")), embed_dims),
        "conv_patch_embed": "patch_embed.conv1.weight" in state_dict,
        "re_attention_blocks": re_attention_blocks,
    }
