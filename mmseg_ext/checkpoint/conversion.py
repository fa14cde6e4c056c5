"""Published state dicts to ours. The tables of names are in `converters`."""

from importlib import import_module

from torch import Tensor

# A folder above this one, imported when a name is converted: the tables need the models, and
# reading a checkpoint needs none.
_TABLES = "mmseg_ext.converters"


def convert_official(
    family: str, state_dict: dict[str, Tensor], classifier: bool = False
) -> dict[str, Tensor]:
    """Convert a published state dict to our names; the result loads with `strict=True`.

    `eanet` returns the segmentor of `configs/ea_r101_voc_45k.py`, `rmt_segmentor` the segmentors of
    RMT's configs, every other family a backbone. `classifier=True` keeps the classifier, for a
    backbone with `num_classes`. Entries with computed values (positions, decays) are optional: they
    are compared with the formula and dropped.

    Raises:
        ValueError: for an unknown family, for `classifier` if the family has none, and for unmapped
            or missing keys; the message lists them.
    """
    families = import_module(_TABLES).FAMILIES
    if family not in families:
        raise ValueError(f"family={family!r}: unknown; use {', '.join(families)}")
    module, has_classifier = families[family]
    if classifier and not has_classifier:
        raise ValueError(f"classifier=True: {family!r} has no classifier; use classifier=False")
    convert = getattr(import_module(f"{_TABLES}.{module}"), f"convert_{family}")
    if has_classifier:
        return convert(state_dict, classifier)
    return convert(state_dict)
