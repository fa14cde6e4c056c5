"""Published weights to ours, and reading weights without running code."""

from mmseg_ext.checkpoint.files import read_state_dict
from mmseg_ext.converters import convert_official

__all__ = ["convert_official", "read_state_dict"]
