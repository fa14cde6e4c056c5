"""`convert_official`: published checkpoints, family by family, to state dicts that load strictly.

One module per family holds its rules and infers the architecture from the checkpoint's shapes.
"""

from collections.abc import Callable

from mmseg_ext.published.key_map import StateDict


def _eanet(state_dict: StateDict, classifier: bool) -> StateDict:
    from mmseg_ext.published.eanet import convert_eanet

    return convert_eanet(state_dict)


def _resnet_deep_stem(state_dict: StateDict, classifier: bool) -> StateDict:
    from mmseg_ext.published.eanet import convert_resnet_deep_stem

    return convert_resnet_deep_stem(state_dict)


def _deepvit(state_dict: StateDict, classifier: bool) -> StateDict:
    from mmseg_ext.published.deepvit import convert_deepvit

    return convert_deepvit(state_dict, classifier)


def _lambda_resnet(state_dict: StateDict, classifier: bool) -> StateDict:
    from mmseg_ext.published.lambda_resnet import convert_lambda_resnet

    return convert_lambda_resnet(state_dict, classifier)


def _timm_lambda_resnet(state_dict: StateDict, classifier: bool) -> StateDict:
    from mmseg_ext.published.lambda_resnet import convert_timm_lambda_resnet

    return convert_timm_lambda_resnet(state_dict, classifier)


def _eamlp(state_dict: StateDict, classifier: bool) -> StateDict:
    from mmseg_ext.published.eamlp import convert_eamlp

    return convert_eamlp(state_dict, classifier)


def _rmt(state_dict: StateDict, classifier: bool) -> StateDict:
    from mmseg_ext.published.rmt import convert_rmt

    return convert_rmt(state_dict, classifier)


def _rmt_segmentor(state_dict: StateDict, classifier: bool) -> StateDict:
    from mmseg_ext.published.rmt import convert_rmt_segmentor

    return convert_rmt_segmentor(state_dict)


# The family modules import mmseg's models, so each is imported when it is asked for.
FAMILIES: dict[str, Callable[[StateDict, bool], StateDict]] = {
    "eanet": _eanet,
    "resnet_deep_stem": _resnet_deep_stem,
    "eamlp": _eamlp,
    "deepvit": _deepvit,
    "rmt": _rmt,
    "rmt_segmentor": _rmt_segmentor,
    "lambda_resnet": _lambda_resnet,
    "timm_lambda_resnet": _timm_lambda_resnet,
}


def convert_official(family: str, state_dict: StateDict, classifier: bool = False) -> StateDict:
    """A published state dict in our names; it loads with `strict=True`.

    `eanet` fills the whole segmentor of `configs/ea_r101_voc_45k.py`, `rmt_segmentor` that of
    RMT's configs; every other family fills a backbone. With `classifier=True` the classifier's keys
    are kept, for a backbone that was built with `num_classes`; with False they are dropped by name.
    Entries that a formula gives may be present or absent; where present they are compared with the
    formula and dropped.

    Raises:
        ValueError: for an unknown family, and listing any unmapped or missing key.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    return FAMILIES[family](state_dict, classifier)
