"""Data types under autocast: probabilities and composed weights stay in float32."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype of autocast on a type of device; None if it is off or does not exist."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4
        available = torch.amp.is_autocast_available(device_type)  # not on meta
        enabled = available and torch.is_autocast_enabled(device_type)
        return torch.get_autocast_dtype(device_type) if enabled else None
    if device_type == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    enabled = device_type == "cuda" and torch.is_autocast_enabled()
    return torch.get_autocast_gpu_dtype() if enabled else None


def set_autocast(device_type: str, dtype: torch.dtype | None) -> None:
    """Enable autocast to `dtype` on a type of device, available or not; None disables it."""
    if hasattr(torch, "set_autocast_dtype"):  # torch 2.4
        torch.set_autocast_enabled(device_type, dtype is not None)
        if dtype is not None:
            torch.set_autocast_dtype(device_type, dtype)
    else:
        torch.set_autocast_enabled(dtype is not None)
        if dtype is not None:
            torch.set_autocast_gpu_dtype(dtype)


def full_precision(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half precision; return float32 and float64 unchanged."""
    return torch.promote_types(dtype, torch.float32)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which autocast runs a product with `x`; without autocast x.dtype."""
    dtype = None if x.dtype == torch.float64 else autocast_dtype(x.device.type)
    return x.dtype if dtype is None else dtype


def autocast_disabled(x: Tensor) -> AbstractContextManager:
    """Disable autocast for the device of x; do nothing if it is off or does not exist (meta)."""
    # An exported program would contain the switch, and not every exporter can save it.
    if autocast_dtype(x.device.type) is None:
        return contextlib.nullcontext()
    return torch.autocast(x.device.type, enabled=False)
