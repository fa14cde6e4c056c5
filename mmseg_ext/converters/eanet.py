"""EANet's segmentation model, and the pretrained ResNets with a deep stem.

Published code: MenghaoGuo/EANet (59c03cb), `model_torch.py`. The backbone is mmsegmentation's
`ResNetV1c(stem_channels=128, multi_grid=(2, 8, 16), contract_dilation=True)` with other names.
"""

import torch
from mmseg.registry import MODELS

from mmseg_ext.backbones.backbone import IMAGENET
from mmseg_ext.converters.key_map import Rule, StateDict, blocks_in, check_keys, entry, rename_keys

_EANET = "https://github.com/MenghaoGuo/EANet"
_EMANET = "https://github.com/XiaLiPKU/EMANet"
DEFAULT_CFGS = {
    "eanet": IMAGENET | {"source": f"README of {_EANET}", "input_size": (3, 513, 513)},
    "resnet_deep_stem": IMAGENET | {"source": f"README of {_EMANET}", "license": "GPL-3.0"},
}
_DEPTHS = {6: 50, 23: 101, 36: 152}  # blocks in the third stage

# In the ResNet, conv1 is the stem up to the third convolution, and bn1 the norm after it.
_RESNET_RULES: list[Rule] = [
    (r"conv1\.([0-6]\..+)", r"stem.\1"),
    (r"bn1\.(.+)", r"stem.7.\1"),
    (r"(layer[1-4]\..+)", r"\1"),
    (r"fc\..+", None),
]
# In the segmentor, extractor is Sequential(conv1, bn1, relu, maxpool, layer1, ..., layer4).
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
    """Return the state dict of the segmentor of `configs/ea_r101_voc_45k.py`.

    Depth, classes and memory size may differ from the config.
    """
    converted = _with_counters(rename_keys(state_dict, _EANET_RULES))
    memory = entry(converted, "decode_head.external_attention.linear_0.weight")
    classifier = entry(converted, "decode_head.conv_seg.weight")
    with torch.device("meta"):
        model = MODELS.build(
            dict(
                type="mmseg.EncoderDecoder",
                backbone=_backbone(_depth(converted, "backbone.layer3")),
                decode_head=dict(
                    type="mmseg.EAHead",
                    in_channels=2048,
                    ea_channels=memory.shape[1],
                    memory_size=memory.shape[0],
                    channels=classifier.shape[1],
                    num_classes=classifier.shape[0],
                    out_channels=classifier.shape[0],
                    norm_cfg=dict(type="BN"),
                ),
            )
        )
    return check_keys(converted, model)


def convert_resnet_deep_stem(state_dict: StateDict) -> StateDict:
    """Return the state dict of mmsegmentation's `ResNetV1c` of 50, 101 or 152 layers.

    `configs/ea_r101_voc_45k.py` uses 101 layers. The classifier `fc` is dropped.
    """
    converted = _with_counters(rename_keys(state_dict, _RESNET_RULES))
    with torch.device("meta"):
        model = MODELS.build(_backbone(_depth(converted, "layer3")))
    return check_keys(converted, model)


def _backbone(depth: int) -> dict:
    return dict(type="mmseg.ResNetV1c", depth=depth, stem_channels=128, norm_cfg=dict(type="BN"))


def _depth(state_dict: StateDict, stage: str) -> int:
    """Return the depth of the ResNet from the number of blocks in its third stage."""
    blocks = len(blocks_in(state_dict, stage))
    if blocks not in _DEPTHS:
        known = ", ".join(f"{count} (ResNet-{depth})" for count, depth in _DEPTHS.items())
        raise ValueError(f"layer3: the checkpoint has {blocks} blocks; known are {known}")
    return _DEPTHS[blocks]


def _with_counters(state_dict: StateDict) -> StateDict:
    """Add zeros for `num_batches_tracked` if it is missing, as in files before PyTorch 0.4.1."""
    complete = dict(state_dict)
    for key in state_dict:
        if key.endswith(".running_var"):
            counter = key.removesuffix("running_var") + "num_batches_tracked"
            complete.setdefault(counter, torch.zeros((), dtype=torch.int64))
    return complete
