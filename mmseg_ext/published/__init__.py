"""Published weights: `convert_official` gives state dicts that load strictly.

The module of a family holds its renaming rules and reads the architecture from the shapes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mmseg_ext.published.key_map import StateDict


class Family(NamedTuple):
    """The module that converts a family, whether its files hold a classifier, their source."""

    module: str
    classifier: bool
    source: str


_EANET = "https://github.com/MenghaoGuo/EANet"
_RMT = "linked in the README of https://github.com/qhfan/RMT"
_TIMM = "https://github.com/rwightman/pytorch-image-models/releases/tag/v0.1-attn-weights"

# A family's module imports mmseg's models, so it is imported when the family is asked for.
FAMILIES = {
    "eanet": Family("eanet", False, f"linked in the README of {_EANET} (no licence)"),
    "resnet_deep_stem": Family(
        "eanet", False, "linked in the README of https://github.com/XiaLiPKU/EMANet"
    ),
    "eamlp": Family("token_backbones", True, f"linked in the folder EAMLP of {_EANET}"),
    "deepvit": Family(
        "token_backbones", True, "linked in the README of https://github.com/zhoudaquan/dvit_repo"
    ),
    "rmt": Family("rmt", True, _RMT),
    "rmt_segmentor": Family("rmt", False, _RMT),
    "lambda_resnet": Family(
        "lambda_resnet", True, "linked in the README of https://github.com/d-li14/lambda.pytorch"
    ),
    "timm_lambda_resnet": Family("lambda_resnet", True, f"lambda_resnet*.pth in {_TIMM}"),
}


def convert_official(family: str, state_dict: "StateDict", classifier: bool = False) -> "StateDict":
    """Convert a published state dict to our names; the result loads with `strict=True`.

    `eanet` fills the whole segmentor of `configs/ea_r101_voc_45k.py`, `rmt_segmentor` that of
    RMT's configs; every other family fills a backbone. `classifier=True` keeps the classifier's
    entries, for a backbone built with `num_classes`. Entries that a formula gives are optional;
    they are compared with the formula and dropped.

    Raises:
        ValueError: for an unknown family, for `classifier` if the family has no classifier, and
            listing all unmapped and missing keys.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    module, has_classifier, _ = FAMILIES[family]
    if classifier and not has_classifier:
        raise ValueError(f"classifier=True: the family {family!r} has no classifier to keep")
    convert = getattr(import_module(f"mmseg_ext.published.{module}"), f"convert_{family}")
    return convert(state_dict, classifier) if has_classifier else convert(state_dict)
