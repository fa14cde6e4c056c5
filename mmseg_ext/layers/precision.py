"""Data types under autocast: probabilities and composed weights stay in float32."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def full_precision(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half precision; return float32 and float64 unchanged."""
    return torch.promote_types(dtype, torch.float32)


def _has_autocast(x: Tensor) -> bool:
    return torch.amp.is_autocast_available(x.device.type)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which autocast runs a product with `x`; without autocast x.dtype."""
    kind = x.device.type
    if _has_autocast(x) and torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype


def autocast_disabled(x: Tensor) -> AbstractContextManager:
    """Disable autocast for the device of x; do nothing if it is off or does not exist (meta)."""
    # An exported program would contain the switch, and not every exporter can save it.
    if not (_has_autocast(x) and torch.is_autocast_enabled(x.device.type)):
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, enabled=False)
