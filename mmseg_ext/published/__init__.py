"""Conversion of published weights to state dicts that load with `strict=True`.

Each family has a module with its renaming rules. The architecture follows from the shapes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mmseg_ext.published.key_map import StateDict


class Family(NamedTuple):
    """The module that converts a family, whether its files have a classifier, and their source.

    The weights were trained on images of `size` pixels a side, whose values (R, G, B, of 0 to 255)
    were normalized with `mean` and `std`.
    """

    module: str
    classifier: bool
    source: str
    size: int = 224
    mean: tuple[float, ...] = (123.675, 116.28, 103.53)
    std: tuple[float, ...] = (58.395, 57.12, 57.375)


_EANET = "https://github.com/MenghaoGuo/EANet"
_DVIT = "linked in the README of https://github.com/zhoudaquan/dvit_repo"
_RMT = "linked in the README of https://github.com/qhfan/RMT"
_TIMM = "https://github.com/rwightman/pytorch-image-models/releases/tag/v0.1-attn-weights"

# The modules import mmseg's models, so each is imported when it is needed.
FAMILIES = {
    "eanet": Family("eanet", False, f"linked in the README of {_EANET} (no licence)", 513),
    "resnet_deep_stem": Family(
        "eanet", False, "linked in the README of https://github.com/XiaLiPKU/EMANet"
    ),
    "eamlp": Family("token_backbones", True, f"linked in the folder EAMLP of {_EANET}", 384),
    "deepvit": Family("token_backbones", True, _DVIT, mean=(127.5,) * 3, std=(127.5,) * 3),
    "rmt": Family("rmt", True, _RMT),
    "rmt_segmentor": Family("rmt", False, _RMT, 512),
    "lambda_resnet": Family(
        "lambda_resnet", True, "linked in the README of https://github.com/d-li14/lambda.pytorch"
    ),
    "timm_lambda_resnet": Family("lambda_resnet", True, f"lambda_resnet*.pth in {_TIMM}", 256),
}


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
    module, has_classifier = FAMILIES[family][:2]
    if classifier and not has_classifier:
        raise ValueError(f"classifier=True: {family!r} has no classifier; use classifier=False")
    convert = getattr(import_module(f"mmseg_ext.published.{module}"), f"convert_{family}")
    return convert(state_dict, classifier) if has_classifier else convert(state_dict)
