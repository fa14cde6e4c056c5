"""Conversion of published weights to state dicts that load with `strict=True`.

Each family has a module with its renaming rules. The architecture follows from the shapes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmseg_ext.converters.key_map import StateDict


# The module of each family, and whether its files have a classifier. The modules import mmseg's
# models, so each is imported when it is needed.
FAMILIES = {
    "eanet": ("eanet", False),
    "resnet_deep_stem": ("eanet", False),
    "eamlp": ("token_backbones", True),
    "deepvit": ("token_backbones", True),
    "rmt": ("rmt", True),
    "rmt_segmentor": ("rmt", False),
    "lambda_resnet": ("lambda_resnet", True),
    "timm_lambda_resnet": ("lambda_resnet", True),
    "efficientnet_lite": ("efficientnet_lite", True),
    "timm_efficientnet_lite": ("efficientnet_lite", True),
}


def family_cfg(family: str) -> dict[str, Any]:
    """Return normalization, image size, source and license, as a backbone's `default_cfg`."""
    return import_module(f"mmseg_ext.converters.{FAMILIES[family][0]}").DEFAULT_CFGS[family]


def convert_official(family: str, state_dict: "StateDict", classifier: bool = False) -> "StateDict":
    """Convert a published state dict to our names; the result loads with `strict=True`.

    `eanet` returns the segmentor of `configs/ea_r101_voc_45k.py`, `rmt_segmentor` the segmentors of
    RMT's configs, every other family a backbone. `classifier=True` keeps the classifier, for a
    backbone with `num_classes`. Entries with computed values (positions, decays) are optional: they
    are compared with the formula and dropped.

    Raises:
        ValueError: for an unknown family, for `classifier` if the family has none, and for unmapped
            or missing keys; the message lists them.
    """
    if family not in FAMILIES:
        raise ValueError(f"family={family!r}: unknown; use {', '.join(FAMILIES)}")
    module, has_classifier = FAMILIES[family]
    if classifier and not has_classifier:
        raise ValueError(f"classifier=True: {family!r} has no classifier; use classifier=False")
    convert = getattr(import_module(f"mmseg_ext.converters.{module}"), f"convert_{family}")
    return convert(state_dict, classifier) if has_classifier else convert(state_dict)
