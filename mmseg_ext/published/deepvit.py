"""DeepViT classifiers published with zhoudaquan/dvit_repo, with and without re-attention."""

import math
import re
from fractions import Fraction

import torch
from torch import Tensor

from mmseg_ext.backbones.deepvit import PATCH, DeepViT
from mmseg_ext.published.key_map import StateDict, check_keys, entry, rename_keys

_KEPT = r"(cls_token|pos_embed|(?:patch_embed|blocks|norm)\..+)"
_HEAD = r"(head\.(?:weight|bias))"
_MIXING = r"blocks\.(\d+)\.attn\.reatten_matrix\.weight"


def convert_deepvit(state_dict: StateDict, classifier: bool) -> StateDict:
    """The backbone's state dict; with `classifier`, that of one built with `num_classes`.

    It loads into a `DeepViT` of the arch and, where the positions are not those of 224x224, the
    `img_size` that the file was trained with (`re_attention=False` where it has none).

    Raises:
        ValueError: for positions that form no square grid, and listing unmapped and missing keys.
    """
    rules = [(_KEPT, r"\1"), (_HEAD, r"\1" if classifier else None)]
    converted = rename_keys(state_dict, rules)
    mixing = {
        int(m[1]): value for key, value in converted.items() if (m := re.fullmatch(_MIXING, key))
    }
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
        raise ValueError(f"pos_embed holds {patches} positions besides the class token: no square")
    return side * PATCH


def _infer_arch(state_dict: StateDict, mixing: dict[int, Tensor]) -> dict:
    """The architecture's widths and depth from the shapes of the checkpoint."""
    embed_dims = entry(state_dict, "cls_token").shape[-1]
    blocks = {int(m[1]) for key in state_dict if (m := re.match(r"blocks\.(\d+)\.", key))}
    depth = max(blocks, default=0) + 1
    return {
        "embed_dims": embed_dims,
        "depth": depth,
        # No other entry's shape depends on the heads, so without re-attention any number fits.
        "num_heads": len(next(iter(mixing.values()))) if mixing else 1,
        "mlp_ratio": Fraction(len(entry(state_dict, "blocks.0.mlp.fc1.weight")), embed_dims),
        "conv_patch_embed": "patch_embed.conv1.weight" in state_dict,
        "re_attention_blocks": depth - min(mixing) if mixing else None,
    }
