"""Functions that torch 2.1 to 2.4 lack or name differently.

Training, resuming, testing and prediction need only these. Export, and reading checkpoints of
mmengine's own Runner, need a newer torch and say so.
"""

from collections.abc import Callable

import torch
from torch import nn

if hasattr(torch.compiler, "is_compiling"):  # torch 2.3
    is_compiling = torch.compiler.is_compiling
else:
    is_compiling = torch._utils.is_compiling  # type: ignore[attr-defined] (not in newer ones)

# Whether attention on a CPU takes a float32 mask with queries in half precision.
MIXED_MASKS = hasattr(nn.Module, "register_load_state_dict_pre_hook")  # torch 2.5


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


def register_load_hook(module: nn.Module, hook: Callable) -> None:
    """Call `hook` with the module and `_load_from_state_dict`'s arguments before it loads."""
    if hasattr(module, "register_load_state_dict_pre_hook"):  # torch 2.5
        module.register_load_state_dict_pre_hook(hook)
    else:
        module._register_load_state_dict_pre_hook(hook, with_module=True)
