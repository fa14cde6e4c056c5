"""DeepViT classifiers that zhoudaquan/dvit_repo publishes, with and without re-attention."""

import math
from fractions import Fraction

import torch
from torch import Tensor

from mmseg_ext.backbones.deepvit import PATCH, DeepViT
from mmseg_ext.published.key_map import StateDict, blocks_in, check_keys, entry, rename_keys

_KEPT = r"(cls_token|pos_embed|(?:patch_embed|blocks|norm)\..+)"
_HEAD = r"(head\.(?:weight|bias))"
_MIXING = "attn.reatten_matrix.weight"


def convert_deepvit(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the backbone's state dict; with `classifier`, that of a model with `num_classes`.

    Build `DeepViT` with the arch and the `img_size` of the file, and with `re_attention=False` if
    the file has no re-attention.

    Raises:
        ValueError: for positions that form no square grid, and listing unmapped and missing keys.
    """
    rules = [(_KEPT, r"\1"), (_HEAD, r"\1" if classifier else None)]
    converted = rename_keys(state_dict, rules)
    mixing = [i for i in blocks_in(converted, "blocks") if f"blocks.{i}.{_MIXING}" in converted]
    with torch.device("meta"):
        model = DeepViT(
            arch=_infer_arch(converted, mixing),
            img_size=_infer_img_size(entry(converted, "pos_embed")),
            re_attention=bool(mixing),
            num_classes=len(entry(converted, "head.weight")) if classifier else None,
        )
    return check_keys(converted, model)


def _infer_img_size(pos_embed: Tensor) -> int:
    patches = pos_embed.shape[1] - 1
    side = math.isqrt(patches)
    if side * side != patches:
        raise ValueError(f"pos_embed has {patches} patch positions, which form no square grid")
    return side * PATCH


def _infer_arch(state_dict: StateDict, mixing: list[int]) -> dict:
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
