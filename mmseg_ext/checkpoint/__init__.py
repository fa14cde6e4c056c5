"""Published weights to ours, and reading weights without running code."""

import importlib
from typing import TYPE_CHECKING

from mmseg_ext.checkpoint.files import read_state_dict

if TYPE_CHECKING:
    from mmseg_ext.converters import convert_official

__all__ = ["convert_official", "read_state_dict"]


def __getattr__(name: str):
    """Import `convert_official` when it is used: models, which it needs, are above this folder."""
    if name == "convert_official":
        return importlib.import_module("mmseg_ext.converters").convert_official
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
