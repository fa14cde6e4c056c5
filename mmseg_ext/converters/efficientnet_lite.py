"""EfficientNet-Lites 0 to 2 of efficientnet-lite-pytorch 0.1.0 and of timm."""

import re

import torch

from mmseg_ext.backbones.efficientnet_lite import ARCHS, STAGES, EfficientNetLite
from mmseg_ext.converters.key_map import (
    Rule,
    StateDict,
    check_keys,
    count_classes,
    entry,
    rename_keys,
)

_CFG = EfficientNetLite.default_cfgs["0"]
DEFAULT_CFGS = {"efficientnet_lite": _CFG, "timm_efficientnet_lite": _CFG}

# The published names of ours, then of the parts of each kind of block.
_PUBLISHED = {
    "stem.0.conv": "_conv_stem",
    "stem.0.bn": "_bn0",
    "classifier.0.conv": "_conv_head",
    "classifier.0.bn": "_bn1",
    "classifier.3": "_fc",
}
_PUBLISHED_PARTS = {
    "expand.conv": "_expand_conv",
    "expand.bn": "_bn0",
    "depthwise.conv": "_depthwise_conv",
    "depthwise.bn": "_bn1",
    "project.conv": "_project_conv",
    "project.bn": "_bn2",
}
_TIMM = {
    "stem.0.conv": "conv_stem",
    "stem.0.bn": "bn1",
    "classifier.0.conv": "conv_head",
    "classifier.0.bn": "bn2",
    "classifier.3": "classifier",
}
_TIMM_FIRST = {  # the first blocks do not expand
    "depthwise.conv": "conv_dw",
    "depthwise.bn": "bn1",
    "project.conv": "conv_pw",
    "project.bn": "bn2",
}
_TIMM_PARTS = {
    "expand.conv": "conv_pw",
    "expand.bn": "bn1",
    "depthwise.conv": "conv_dw",
    "depthwise.bn": "bn2",
    "project.conv": "conv_pwl",
    "project.bn": "bn3",
}

_BLOCK = re.compile(r"_?blocks[\d.]*\d")  # _blocks.15 as published, blocks.6.0 of timm


def convert_efficientnet_lite(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `EfficientNetLite` from the names of efficientnet-lite-pytorch."""
    return _convert(state_dict, _PUBLISHED, {r"_blocks\.\d+": _PUBLISHED_PARTS}, classifier)


def convert_timm_efficientnet_lite(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `EfficientNetLite` from the names of timm."""
    blocks = {r"blocks\.0\.\d+": _TIMM_FIRST, r"blocks\.[1-6]\.\d+": _TIMM_PARTS}
    return _convert(state_dict, _TIMM, blocks, classifier)


def _convert(
    state_dict: StateDict, names: dict[str, str], blocks: dict[str, dict[str, str]], kept: bool
) -> StateDict:
    """Rename the keys; `blocks` has the names in each kind of block, by a pattern for the block."""
    rules: list[Rule] = []
    for new, old in names.items():
        dropped = new.startswith("classifier") and not kept
        rules.append((rf"{old}\.(.+)", None if dropped else rf"{new}.\1"))
    for block, parts in blocks.items():
        for new, old in parts.items():
            rules.append((rf"({block})\.{old}\.(.+)", rf"\1.{new}.\2"))
    renamed = rename_keys(state_dict, rules)
    places = _places_of_blocks(renamed)
    converted = {}
    for key, value in renamed.items():
        block = _BLOCK.match(key)
        if block is not None:
            key = places[block[0]] + key[block.end() :]
        converted[key] = value
    classes = count_classes(converted, "classifier.3.weight", kept)
    arch = EfficientNetLite.named_arch(converted) or "0"
    with torch.device("meta"):
        channels = entry(converted, "stem.0.conv.weight").shape[1]
        model = EfficientNetLite(arch, in_channels=channels, num_classes=classes)
    return check_keys(converted, model)


def _places_of_blocks(state_dict: StateDict) -> dict[str, str]:
    """Return our name of each published block: a part of the stem or of a stage.

    Raises:
        ValueError: if no arch has this number of blocks.
    """
    found = set()
    for key in state_dict:
        block = _BLOCK.match(key)
        if block is not None:
            found.add(block[0])
    depths = None
    known = []
    for name, arch in ARCHS.items():
        count = sum(arch["depths"])
        known.append(f"{count} (arch {name!r})")
        if count == len(found):
            depths = arch["depths"]
    if depths is None:
        raise ValueError(f"blocks: the checkpoint has {len(found)}; known are {', '.join(known)}")
    places = [f"stem.{i + 1}" for i in range(depths[0])]
    for stage, groups in enumerate(STAGES):
        count = sum(depths[group] for group in groups)
        places += [f"stages.{stage}.{i}" for i in range(count)]
    # By the numbers in the names: [6, 0] for blocks.6.0.
    numbered = sorted(found, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
    return dict(zip(numbered, places, strict=True))
