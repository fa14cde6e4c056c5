"""mmseg_ext: decode heads and backbones with external, Manhattan, lambda and re-attention.

Importing the package makes every head, backbone, dataset and training component known to
mmsegmentation's registry, so a config only needs
``custom_imports = dict(imports=['mmseg_ext'], allow_failed_imports=False)``. The backbones, the
runner and the hooks are known to mmdetection and mmpretrain, too, with mmsegmentation or without.
Without the mm stack the import succeeds and registers nothing; ``mmseg_ext.layers`` is plain
PyTorch and usable either way. Nothing else in the process changes: see `safe_loading`.
"""

from mmseg_ext import interruption

interruption.guard_imports()

import importlib
from contextlib import AbstractContextManager

from mmseg_ext.environment import (
    BASE,
    check_stack,
    quiet_stack_imports,
    stack_problem,
)
from mmseg_ext.errors import StackError
from mmseg_ext.inference.fusion import fuse_model
from mmseg_ext.version import __version__

__all__ = [
    "StackError",
    "__version__",
    "fuse_model",
    "register_all_modules",
    "safe_loading",
]

_ANY_PACKAGE = ("backbones", "datasets", "engine")
_MMSEG = ("decode_heads", "segmentors", "evaluation", "reports")


def _register() -> None:
    rooms = _ANY_PACKAGE if stack_problem() else _ANY_PACKAGE + _MMSEG
    with quiet_stack_imports():
        for name in rooms:
            importlib.import_module(f"mmseg_ext.{name}")


def register_all_modules(init_default_scope: bool = True) -> None:
    """Register mmsegmentation's modules and ours; for scripts that build without a Runner.

    Raises:
        StackError: if mmengine, mmcv or mmsegmentation is missing or too old; the message names the
            command that installs them.
    """
    check_stack()
    from mmseg.utils import register_all_modules as register_mmseg

    register_mmseg(init_default_scope)
    _register()


def safe_loading(min_backbone_share: float | None = None) -> AbstractContextManager:
    """Let mmengine, mmsegmentation and their siblings load weights without running code from them.

    As a context manager for its block, as a plain call for the rest of the process. Checkpoints
    load as data, of which tensors, plain containers and mmengine's logged numbers are known, and
    there is no fallback; each load says how much of the model it fills, and is refused where
    the weights are not finite or fill too little of the backbone.

    `DurableRunner`, the tools and `mmseg_ext.inference` load so by themselves. mmengine's functions
    are replaced while the context lasts, for all threads.

    Args:
        min_backbone_share: the least part of a backbone's values, 0 to 1; by default 0.9.
    """
    check_stack(BASE)
    from mmseg_ext.checkpoint.safe_loading import SafeLoading

    return SafeLoading(min_backbone_share)


if stack_problem(BASE) is None:
    _register()
