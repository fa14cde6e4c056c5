"""Data types under autocast: probabilities and composed weights stay in float32."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from mmseg_ext.torch_versions import autocast_dtype


def full_precision(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half precision; return float32 and float64 unchanged."""
    return torch.promote_types(dtype, torch.float32)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which autocast runs a product with `x`; without autocast x.dtype."""
    if x.dtype == torch.float64:  # which autocast leaves alone
        return x.dtype
    return autocast_dtype(x.device.type) or x.dtype


def autocast_disabled(x: Tensor) -> AbstractContextManager:
    """Disable autocast for the device of x; do nothing if it is off or does not exist (meta)."""
    # An exported program would contain the switch, and not every exporter can save it.
    if autocast_dtype(x.device.type) is None:
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, enabled=False)
