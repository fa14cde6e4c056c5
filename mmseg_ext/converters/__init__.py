"""The families of published weights, which `mmseg_ext.checkpoint.convert_official` converts.

Each family has a module with its renaming rules. The architecture follows from the shapes. All
functions `convert_FAMILY` raise a ValueError that lists unmapped and missing keys and other shapes.
"""

from importlib import import_module
from typing import Any

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
