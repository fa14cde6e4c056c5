"""EfficientNet-Lites 0 to 2 of efficientnet-lite-pytorch 0.1.0 and of timm."""

import re

import torch

from mmseg_ext.backbones.efficientnet_lite import ARCHS, STAGES, EfficientNetLite
from mmseg_ext.converters.key_map import Rule, StateDict, check_keys, entry, rename_keys

_CFG = EfficientNetLite.default_cfgs["0"]
DEFAULT_CFGS = {"efficientnet_lite": _CFG, "timm_efficientnet_lite": _CFG}

# The published names of ours, then of the parts of each kind of block.
_PUBLISHED = {"stem.0.conv": "_conv_stem", "stem.0.bn": "_bn0"}
_PUBLISHED |= {"classifier.0.conv": "_conv_head", "classifier.0.bn": "_bn1", "classifier.3": "_fc"}
_PUBLISHED_PARTS = {"expand.conv": "_expand_conv", "expand.bn": "_bn0"}
_PUBLISHED_PARTS |= {"depthwise.conv": "_depthwise_conv", "depthwise.bn": "_bn1"}
_PUBLISHED_PARTS |= {"project.conv": "_project_conv", "project.bn": "_bn2"}
_TIMM = {"stem.0.conv": "conv_stem", "stem.0.bn": "bn1", "classifier.0.conv": "conv_head"}
_TIMM |= {"classifier.0.bn": "bn2", "classifier.3": "classifier"}
_TIMM_FIRST = {"depthwise.conv": "conv_dw", "depthwise.bn": "bn1"}  # these do not expand
_TIMM_FIRST |= {"project.conv": "conv_pw", "project.bn": "bn2"}
_TIMM_PARTS = {"expand.conv": "conv_pw", "expand.bn": "bn1", "depthwise.conv": "conv_dw"}
_TIMM_PARTS |= {"depthwise.bn": "bn2", "project.conv": "conv_pwl", "project.bn": "bn3"}


def convert_efficientnet_lite(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `EfficientNetLite` from the names of efficientnet-lite-pytorch.

    Raises:
        ValueError: for unmapped and missing keys and other shapes, with a list.
    """
    return _convert(state_dict, _PUBLISHED, {r"_blocks\.\d+": _PUBLISHED_PARTS}, classifier)


def convert_timm_efficientnet_lite(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `EfficientNetLite` from the names of timm.

    Raises:
        ValueError: for unmapped and missing keys and other shapes, with a list.
    """
    blocks = {r"blocks\.0\.\d+": _TIMM_FIRST, r"blocks\.[1-6]\.\d+": _TIMM_PARTS}
    return _convert(state_dict, _TIMM, blocks, classifier)


def _convert(
    state_dict: StateDict, names: dict[str, str], blocks: dict[str, dict[str, str]], kept: bool
) -> StateDict:
    """Rename the keys; `blocks` has the names in each kind of block, by a pattern for the block."""
    rules: list[Rule] = [
        (rf"{old}\.(.+)", rf"{new}.\1" if kept or not new.startswith("classifier") else None)
        for new, old in names.items()
    ]
    for block, parts in blocks.items():
        rules += [(rf"({block})\.{old}\.(.+)", rf"\1.{new}.\2") for new, old in parts.items()]
    renamed = rename_keys(state_dict, rules)
    # Each block gets its stage.
    found = {m[0] for key in renamed if (m := re.match(r"_?blocks[\d.]*\d", key))}
    numbered = sorted(found, key=lambda name: [*map(int, re.findall(r"\d+", name))])
    depths = next((a["depths"] for a in ARCHS.values() if sum(a["depths"]) == len(found)), None)
    if depths is None:
        known = ", ".join(f"{sum(a['depths'])} (arch {name!r})" for name, a in ARCHS.items())
        raise ValueError(f"blocks: the checkpoint has {len(found)}; known are {known}")
    places = [f"stem.{i + 1}" for i in range(depths[0])]
    for stage, groups in enumerate(STAGES):
        places += [f"stages.{stage}.{i}" for i in range(sum(depths[group] for group in groups))]
    place = dict(zip(numbered, places, strict=True))
    pattern = re.compile(r"_?blocks[\d.]*\d(?=\.)")
    converted = {pattern.sub(lambda m: place[m[0]], k): v for k, v in renamed.items()}
    classes = len(entry(converted, "classifier.3.weight")) if kept else None
    arch = EfficientNetLite.named_arch(converted) or "0"
    with torch.device("meta"):
        channels = entry(converted, "stem.0.conv.weight").shape[1]
        model = EfficientNetLite(arch, in_channels=channels, num_classes=classes)
    return check_keys(converted, model)
