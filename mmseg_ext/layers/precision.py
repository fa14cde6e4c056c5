"""Dtypes under autocast: probabilities and composed weights in float32, large products as asked."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def full_precision(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precisions; float32 and float64 stay what they are."""
    return torch.promote_types(dtype, torch.float32)


def _has_autocast(x: Tensor) -> bool:
    return torch.amp.is_autocast_available(x.device.type)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which autocast would run a product with `x`; x's own outside autocast."""
    kind = x.device.type
    if _has_autocast(x) and torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype


def autocast_disabled(x: Tensor) -> AbstractContextManager:
    """Autocast off for x's device; nothing where it is off, or where there is none (meta).

    An exported program would keep a switch as a part of its own, which not all of them can save.
    """
    if not (_has_autocast(x) and torch.is_autocast_enabled(x.device.type)):
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, enabled=False)
