"""mmseg_ext: decode heads and backbones with external, Manhattan, lambda and re-attention.

Importing the package registers its heads, backbones, datasets and training components with
mmsegmentation, so a config only needs
``custom_imports = dict(imports=['mmseg_ext'], allow_failed_imports=False)``. mmdetection and
mmpretrain know the backbones, the runner and the hooks too, with mmsegmentation or without. Without
the mm stack the import succeeds and registers nothing; ``mmseg_ext.layers`` is plain PyTorch.
Importing the package has no other side effects. A command registers after it has read its flags.
"""

import importlib
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mmseg_ext.environment import (
    BASE,
    check_stack,
    quiet_stack_imports,
    stack_problem,
)
from mmseg_ext.errors import StackError
from mmseg_ext.version import __version__

if TYPE_CHECKING:
    from mmseg_ext.inference.fusion import fuse_model
    from mmseg_ext.inference.models import get_model, list_models
    from mmseg_ext.inference.predictor import Predictor

__all__ = [
    "Predictor",
    "StackError",
    "__version__",
    "fuse_model",
    "get_model",
    "list_models",
    "register_all_modules",
    "safe_loading",
    "use_operators_in_pytorch",
]

_ANY_PACKAGE = ("backbones", "datasets", "engine")
_MMSEG = ("decode_heads", "segmentors", "evaluation", "reports")


_INFERENCE = {
    "Predictor": "predictor",
    "fuse_model": "fusion",
    "get_model": "models",
    "list_models": "models",
}


def __getattr__(name: str):
    """Import a name of `mmseg_ext.inference` when it is used: `import mmseg_ext` stays fast."""
    if name in _INFERENCE:
        return getattr(importlib.import_module(f"mmseg_ext.inference.{_INFERENCE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Register what this package has, as far as the stack is there; importing it does the same."""
    if stack_problem(BASE) is not None:
        return
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
    register()


def use_operators_in_pytorch() -> None:
    """Let mmsegmentation and mmdetection import where mmcv has no compiled operators.

    mmsegmentation 1.2.2 imports them whether a model needs them or not. With one warning,
    `mmseg_ext.detection.operators_in_pytorch` stands in for those that are missing. Call it before
    `import mmseg`; the commands of this package do so where it is needed.
    """
    before = stack_problem()
    importlib.import_module("mmseg_ext.detection.operators_in_pytorch")
    stack_problem.cache_clear()
    if before is not None and stack_problem() is None:
        for name in ("backbones", "datasets"):  # with mmsegmentation they have more
            importlib.reload(importlib.import_module(f"mmseg_ext.{name}"))
        register()


def safe_loading(min_backbone_share: float | None = None) -> AbstractContextManager:
    """Let mmengine, mmsegmentation and their siblings load weights without running code from them.

    Use it as a context manager for a block, or as a call for the rest of the process. It replaces
    functions of mmengine, for all threads; other calls of `torch.load` are unchanged. Files must
    contain only tensors, plain containers and mmengine's logged numbers. Each load logs how much of
    the model it fills, and refuses weights that are not finite or fill too little of the backbone.

    `DurableRunner` and the commands use it automatically.

    Args:
        min_backbone_share: the least share of a backbone's values, 0 to 1; 0.9 by default.
    """
    check_stack(BASE)
    from mmseg_ext.checkpoint.loading import SafeLoading

    return SafeLoading(min_backbone_share)


if not getattr(sys.modules.get("mmseg_ext_cli"), "registers_later", False):
    register()
