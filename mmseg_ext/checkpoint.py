"""Published weights to ours, and reading weights without running code."""

from mmseg_ext.durable.checkpoint_files import read_state_dict
from mmseg_ext.published import convert_official

__all__ = ["convert_official", "read_state_dict"]
