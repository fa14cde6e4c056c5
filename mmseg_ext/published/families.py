"""`convert_official`: published checkpoints, family by family, to state dicts that load strictly.

One module per family holds its rules and infers the architecture from the checkpoint's shapes.
"""

from importlib import import_module
from typing import NamedTuple

from mmseg_ext.published.key_map import StateDict


class Family(NamedTuple):
    """Where a family's conversion stands, and whether its files hold a classifier to keep."""

    module: str
    function: str
    classifier: bool


# By name: the family modules import mmseg's models, so each is imported when it is asked for.
FAMILIES = {
    "eanet": Family("eanet", "convert_eanet", False),
    "resnet_deep_stem": Family("eanet", "convert_resnet_deep_stem", False),
    "eamlp": Family("eamlp", "convert_eamlp", True),
    "deepvit": Family("deepvit", "convert_deepvit", True),
    "rmt": Family("rmt", "convert_rmt", True),
    "rmt_segmentor": Family("rmt", "convert_rmt_segmentor", False),
    "lambda_resnet": Family("lambda_resnet", "convert_lambda_resnet", True),
    "timm_lambda_resnet": Family("lambda_resnet", "convert_timm_lambda_resnet", True),
}


def convert_official(family: str, state_dict: StateDict, classifier: bool = False) -> StateDict:
    """A published state dict in our names; it loads with `strict=True`.

    `eanet` fills the whole segmentor of `configs/ea_r101_voc_45k.py`, `rmt_segmentor` that of
    RMT's configs; every other family fills a backbone. With `classifier=True` the classifier's keys
    are kept, for a backbone that was built with `num_classes`; with False they are dropped by name.
    Entries that a formula gives may be present or absent; where present they are compared with the
    formula and dropped.

    Raises:
        ValueError: for an unknown family, for `classifier` where the family has none to keep, and
            listing any unmapped or missing key.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    module, function, has_classifier = FAMILIES[family]
    if classifier and not has_classifier:
        raise ValueError(f"classifier=True: the family {family!r} has no classifier to keep")
    convert = getattr(import_module(f"mmseg_ext.published.{module}"), function)
    return convert(state_dict, classifier) if has_classifier else convert(state_dict)
