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


def register_load_hook(module: nn.Module, hook: Callable) -> None:
    """Call `hook` with the module and `_load_from_state_dict`'s arguments before it loads."""
    if hasattr(module, "register_load_state_dict_pre_hook"):  # torch 2.5
        module.register_load_state_dict_pre_hook(hook)
    else:
        module._register_load_state_dict_pre_hook(hook, with_module=True)
