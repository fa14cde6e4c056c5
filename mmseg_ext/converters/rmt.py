"""RMT's classifiers, and its segmentors with FPN and UPerNet.

Published code: qhfan/RMT (32ea214), `classfication_release/RMT.py`,
`classification_token_label_release/RMT.py` and `segmentation/mmseg/models/backbones/RMT.py`.
"""

import re

import torch

from mmseg_ext.backbones.rmt import ARCHS, RMT
from mmseg_ext.converters.key_map import (
    Rule,
    StateDict,
    check_keys,
    count_classes,
    rename_keys,
)
from mmseg_ext.layers.manhattan_attention import log_decays

DEFAULT_CFGS = {
    "rmt": RMT.default_cfgs[""],
    "rmt_segmentor": RMT.default_cfgs[""] | {"input_size": (3, 512, 512), "license": "Apache-2.0"},
}
_BLOCK = r"layers\.(\d+)\.blocks\.(\d+)\."  # layers.2.blocks.14.
_BACKBONE: list[Rule] = [
    (r"patch_embed\.proj\.(.+)", r"stem.\1"),
    (_BLOCK + r"retention\.([qkv]|out)_proj\.(.+)", r"stages.\1.\2.attn.\3_proj.\4"),
    (_BLOCK + r"retention\.lepe\.conv\.(.+)", r"stages.\1.\2.attn.lce.\3"),
    (_BLOCK + r"retention_layer_norm\.(.+)", r"stages.\1.\2.norm1.\3"),
    (_BLOCK + r"final_layer_norm\.(.+)", r"stages.\1.\2.norm2.\3"),
    (_BLOCK + r"ffn\.(fc[12])\.(.+)", r"stages.\1.\2.ffn.\3.\4"),
    (_BLOCK + r"ffn\.dwconv\.conv\.(.+)", r"stages.\1.\2.ffn.dwconv.\3"),
    (_BLOCK + r"pos\.conv\.(.+)", r"stages.\1.\2.cpe.\3"),
    (_BLOCK + r"gamma_([12])", r"stages.\1.\2.gamma\3"),
    (r"layers\.(\d+)\.downsample\.reduction\.(.+)", r"downsamples.\1.conv.\2"),
    (r"layers\.(\d+)\.downsample\.norm\.(.+)", r"downsamples.\1.norm.\2"),
    (r"layers\.\d+\.Relpos\.(angle|decay)", None),  # compared by `_check_formulas`
    (r"extra_norms\.(\d+)\.(.+)", r"out_norms.\1.\2"),
]
_CLASSIFIER = r"(proj|norm|head)\.(.+)"  # head.weight
_AUXILIARY = r"aux_head\..+"  # aux_head.weight: the dense head of training with token labels
_OTHER_PARTS = r"(neck|decode_head|auxiliary_head)\..+"  # decode_head.conv_seg.weight


def convert_rmt(state_dict: StateDict, classifier: bool = False) -> StateDict:
    """Return the state dict of `RMT`, with `num_classes` if `classifier` is true.

    The state dict may be a classifier's, or a segmentor's, which has more than the backbone.
    Classification files have no output norms: their weights become one, their biases zero.

    Raises:
        ValueError: as all converters; if `Relpos` differs from its formula; for the classifier of a
            file that was trained with token labels.
    """
    if any(key.startswith("backbone.") for key in state_dict):  # a segmentor's
        prefix = r"(?:backbone\.)?(.+)"
        state_dict = rename_keys(state_dict, [(_OTHER_PARTS, None), (prefix, r"\1")])
    if classifier:
        if any(re.fullmatch(_AUXILIARY, key) for key in state_dict):
            raise ValueError(
                "aux_head.*: this classifier, trained with token labels, also needs a dense head, "
                "which RMT does not have; use classifier=False"
            )
        rules = [*_BACKBONE, (_CLASSIFIER, r"classifier.\1.\2")]
    else:
        rules = [*_BACKBONE, (_CLASSIFIER, None), (_AUXILIARY, None)]
    converted = rename_keys(state_dict, rules)
    for key in converted:
        if key.endswith((".gamma1", ".gamma2")):
            converted[key] = converted[key].flatten()  # (1, 1, 1, C) to (C,)
    name = RMT.named_arch(converted)
    if name is None:
        raise ValueError(f"arch: the checkpoint fits none of {', '.join(ARCHS)}")
    _check_formulas(state_dict, name)
    classes = count_classes(converted, "classifier.head.weight", classifier)
    if not classifier and not any(key.startswith("out_norms.") for key in converted):
        for i, width in enumerate(ARCHS[name]["embed_dims"]):
            converted[f"out_norms.{i}.weight"] = torch.ones(width)
            converted[f"out_norms.{i}.bias"] = torch.zeros(width)
    with torch.device("meta"):
        model = RMT(name, num_classes=classes)
    return check_keys(converted, model)


def convert_rmt_segmentor(state_dict: StateDict) -> StateDict:
    """Return the state dict of the segmentor of `configs/fpn_rmt_*.py` or `upernet_rmt_*.py`.

    The neck and the heads are mmsegmentation's and keep their names.

    Raises:
        ValueError: as `convert_rmt`, and if there is no decode head.
    """
    others = {}
    for key, value in state_dict.items():
        if re.fullmatch(_OTHER_PARTS, key):
            others[key] = value
    if not others:
        raise ValueError("decode_head.*: not in the checkpoint; use the family 'rmt' for backbones")
    backbone = convert_rmt(state_dict)
    return {f"backbone.{key}": value for key, value in backbone.items()} | others


def _check_formulas(state_dict: StateDict, name: str) -> None:
    """Compare `Relpos.angle` and `Relpos.decay`, if present, with the values of our attention."""
    settings = ARCHS[name]
    for i, heads in enumerate(settings["num_heads"]):
        width = settings["embed_dims"][i] // heads
        angle = 10000.0 ** -torch.linspace(0, 1, width // 2, dtype=torch.float64)
        formulas = {
            "angle": angle.repeat_interleave(2),
            "decay": log_decays(heads, 2.0, settings["decay_ranges"][i]),
        }
        for kind, value in formulas.items():
            key = f"layers.{i}.Relpos.{kind}"
            if key not in state_dict:
                continue
            found = state_dict[key].double()
            if found.shape != value.shape or not torch.allclose(found, value, rtol=1e-4):
                raise ValueError(f"{key}: differs from its formula for arch {name!r}")
