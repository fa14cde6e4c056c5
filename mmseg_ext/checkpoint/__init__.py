"""Published weights to ours, and reading weights without running code."""

from mmseg_ext.checkpoint.conversion import convert_official
from mmseg_ext.checkpoint.files import read_state_dict

__all__ = ["convert_official", "read_state_dict"]
