"""EANet's published segmentation model, and the ResNets with a deep stem that it starts from.

MenghaoGuo/EANet, `model_torch.py`. The published backbone is mmsegmentation's `ResNetV1c` with
`stem_channels=128, multi_grid=(2, 8, 16), contract_dilation=True` under other names.
"""

import re

import torch
from mmseg.registry import MODELS

from mmseg_ext.published.key_map import Rule, StateDict, check_keys, entry, rename_keys

_DEPTHS = {6: 50, 23: 101, 36: 152}  # blocks in the third stage
_STAGES: list[Rule] = [(r"(layer[1-4]\..+)", r"\1")]

# The ResNet files: conv1 is the stem's sequence up to its third convolution, bn1 ends it.
_RESNET_RULES: list[Rule] = [
    (r"conv1\.([0-6]\..+)", r"stem.\1"),
    (r"bn1\.(.+)", r"stem.7.\1"),
    *_STAGES,
    (r"fc\..+", None),
]
# The segmentor: extractor is Sequential(conv1, bn1, relu, maxpool, layer1, ..., layer4).
_EANET_RULES: list[Rule] = [
    (r"extractor\.0\.(.+)", r"backbone.stem.\1"),
    (r"extractor\.1\.(.+)", r"backbone.stem.7.\1"),
    (r"extractor\.4\.(.+)", r"backbone.layer1.\1"),
    (r"extractor\.5\.(.+)", r"backbone.layer2.\1"),
    (r"extractor\.6\.(.+)", r"backbone.layer3.\1"),
    (r"extractor\.7\.(.+)", r"backbone.layer4.\1"),
    (r"fc0\.(.+)", r"decode_head.conv_in.\1"),
    (r"linu\.(.+)", r"decode_head.external_attention.\1"),
    (r"fc1\.0\.(.+)", r"decode_head.conv_out.\1"),
    (r"fc2\.(.+)", r"decode_head.conv_seg.\1"),
]


def convert_eanet(state_dict: StateDict) -> StateDict:
    """The whole segmentor of `configs/ea_r101_voc_45k.py`.

    Depth, classes and memory size are read off the shapes, so that a model trained with other ones
    converts too.

    Raises:
        ValueError: listing unmapped, missing and differing entries.
    """
    converted = _with_counters(rename_keys(state_dict, _EANET_RULES))
    memory = entry(converted, "decode_head.external_attention.linear_0.weight")
    classifier = entry(converted, "decode_head.conv_seg.weight")
    norm_cfg = {"type": "BN"}
    with torch.device("meta"):
        model = MODELS.build(
            {
                "type": "mmseg.EncoderDecoder",
                "backbone": _backbone(_depth(converted, "backbone.")),
                "decode_head": {
                    "type": "mmseg.EAHead",
                    "in_channels": 2048,
                    "ea_channels": memory.shape[1],
                    "memory_size": memory.shape[0],
                    "channels": classifier.shape[1],
                    "num_classes": classifier.shape[0],
                    "out_channels": classifier.shape[0],
                    "norm_cfg": norm_cfg,
                },
            }
        )
    return check_keys(converted, model)


def convert_resnet_deep_stem(state_dict: StateDict) -> StateDict:
    """The backbone of `configs/ea_r101_voc_45k.py`, or its 50- or 152-layer form, from ImageNet.

    The classifier `fc` is dropped.

    Raises:
        ValueError: listing unmapped, missing and differing entries.
    """
    converted = _with_counters(rename_keys(state_dict, _RESNET_RULES))
    with torch.device("meta"):
        model = MODELS.build(_backbone(_depth(converted, "")))
    return check_keys(converted, model)


def _backbone(depth: int) -> dict:
    return {
        "type": "mmseg.ResNetV1c",
        "depth": depth,
        "stem_channels": 128,
        "norm_cfg": {"type": "BN"},
    }


def _depth(state_dict: StateDict, prefix: str) -> int:
    """The ResNet's depth from its number of blocks in the third stage."""
    pattern = re.compile(re.escape(prefix) + r"layer3\.(\d+)\.")
    blocks = {int(match[1]) for key in state_dict if (match := pattern.match(key))}
    if len(blocks) not in _DEPTHS:
        raise ValueError(
            f"the checkpoint has {len(blocks)} blocks in layer3; a ResNet of "
            f"{', '.join(map(str, _DEPTHS.values()))} layers has "
            f"{', '.join(map(str, _DEPTHS))}"
        )
    return _DEPTHS[len(blocks)]


def _with_counters(state_dict: StateDict) -> StateDict:
    """`num_batches_tracked` of zero for each batch norm of a file older than PyTorch 0.4.1."""
    complete = dict(state_dict)
    for key in state_dict:
        if key.endswith(".running_var"):
            counter = key.removesuffix("running_var") + "num_batches_tracked"
            complete.setdefault(counter, torch.zeros((), dtype=torch.int64))
    return complete
