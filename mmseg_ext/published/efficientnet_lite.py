"""EfficientNet-Lites 0 to 2 of efficientnet-lite-pytorch 0.1.0 and of timm."""

import re

import torch

from mmseg_ext.backbones.efficientnet_lite import ARCHS, STAGES, EfficientNetLite
from mmseg_ext.published.key_map import Rule, StateDict, check_keys, entry, rename_keys

_CFG = EfficientNetLite.default_cfgs["0"]
DEFAULT_CFGS = {"efficientnet_lite": _CFG, "timm_efficientnet_lite": _CFG}

# These rules rename the parts of a block. Then each block gets its stage.
_PUBLISHED: list[Rule] = [
    (r"_conv_stem\.(.+)", r"stem.0.conv.\1"),
    (r"_bn0\.(.+)", r"stem.0.bn.\1"),
    (r"(_blocks\.\d+)\._(expand|depthwise|project)_conv\.(.+)", r"\1.\2.conv.\3"),
    (r"(_blocks\.\d+)\._bn0\.(.+)", r"\1.expand.bn.\2"),
    (r"(_blocks\.\d+)\._bn1\.(.+)", r"\1.depthwise.bn.\2"),
    (r"(_blocks\.\d+)\._bn2\.(.+)", r"\1.project.bn.\2"),
]
_PUBLISHED_CLASSIFIER = (r"_conv_head\.(.+)", r"_bn1\.(.+)", r"_fc\.(.+)")
_TIMM: list[Rule] = [
    (r"conv_stem\.(.+)", r"stem.0.conv.\1"),
    (r"bn1\.(.+)", r"stem.0.bn.\1"),
    # The blocks of the first group do not expand.
    (r"(blocks\.0\.\d+)\.conv_dw\.(.+)", r"\1.depthwise.conv.\2"),
    (r"(blocks\.0\.\d+)\.bn1\.(.+)", r"\1.depthwise.bn.\2"),
    (r"(blocks\.0\.\d+)\.conv_pw\.(.+)", r"\1.project.conv.\2"),
    (r"(blocks\.0\.\d+)\.bn2\.(.+)", r"\1.project.bn.\2"),
    (r"(blocks\.\d+\.\d+)\.conv_pw\.(.+)", r"\1.expand.conv.\2"),
    (r"(blocks\.\d+\.\d+)\.bn1\.(.+)", r"\1.expand.bn.\2"),
    (r"(blocks\.\d+\.\d+)\.conv_dw\.(.+)", r"\1.depthwise.conv.\2"),
    (r"(blocks\.\d+\.\d+)\.bn2\.(.+)", r"\1.depthwise.bn.\2"),
    (r"(blocks\.\d+\.\d+)\.conv_pwl\.(.+)", r"\1.project.conv.\2"),
    (r"(blocks\.\d+\.\d+)\.bn3\.(.+)", r"\1.project.bn.\2"),
]
_TIMM_CLASSIFIER = (r"conv_head\.(.+)", r"bn2\.(.+)", r"classifier\.(.+)")


def convert_efficientnet_lite(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `EfficientNetLite` from the names of efficientnet-lite-pytorch.

    Raises:
        ValueError: for unmapped and missing keys and other shapes, with a list.
    """
    return _convert(state_dict, _PUBLISHED, _PUBLISHED_CLASSIFIER, classifier)


def convert_timm_efficientnet_lite(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `EfficientNetLite` from the names of timm.

    Raises:
        ValueError: for unmapped and missing keys and other shapes, with a list.
    """
    return _convert(state_dict, _TIMM, _TIMM_CLASSIFIER, classifier)


def _convert(
    state_dict: StateDict, rules: list[Rule], last: tuple[str, ...], classifier: bool
) -> StateDict:
    """Rename the keys; `last` has the patterns of the classifier's convolution, norm and linear."""
    names = (r"classifier.0.conv.\1", r"classifier.0.bn.\1", r"classifier.3.\1")
    kept = [(old, new if classifier else None) for old, new in zip(last, names, strict=True)]
    renamed = rename_keys(state_dict, [*rules, *kept])
    found = {m[0] for key in renamed if (m := re.match(r"_?blocks[\d.]+\d", key))}
    blocks = sorted(found, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    depths = next((a["depths"] for a in ARCHS.values() if sum(a["depths"]) == len(blocks)), None)
    if depths is None:
        known = ", ".join(f"{sum(a['depths'])} (arch {name!r})" for name, a in ARCHS.items())
        raise ValueError(f"blocks: the checkpoint has {len(blocks)}; known are {known}")
    places = [f"stem.{i + 1}" for i in range(depths[0])]
    for stage, groups in enumerate(STAGES):
        places += [f"stages.{stage}.{i}" for i in range(sum(depths[group] for group in groups))]
    place = dict(zip(blocks, places, strict=True))
    converted = {
        re.sub(r"_?blocks[\d.]+\d(?=\.)", lambda m: place[m[0]], key): value
        for key, value in renamed.items()
    }
    classes = len(entry(converted, "classifier.3.weight")) if classifier else None
    arch = EfficientNetLite.named_arch(converted) or "0"
    with torch.device("meta"):
        model = EfficientNetLite(
            arch, in_channels=entry(converted, "stem.0.conv.weight").shape[1], num_classes=classes
        )
    return check_keys(converted, model)
