"""Decode heads and backbones with external, Manhattan, lambda and re-attention.

Importing the package registers them, the datasets and the training components, and has no other
side effects. A config only needs
``custom_imports = dict(imports=['mmseg_ext'], allow_failed_imports=False)``. The backbones, the
runner and the hooks also work in mmdetection and mmpretrain, without mmsegmentation.

Python runs this file before any part of the package. ``mmseg_ext.layers`` needs only torch, so
registering waits until the mm stack is imported: before that, nothing can look up a name.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mmseg_ext.environment import (
    BASE,
    check_stack,
    other_project,
    quiet_stack_imports,
    stack_problem,
)
from mmseg_ext.errors import StackError

if TYPE_CHECKING:
    from mmseg_ext.checkpoint.safe_loading import safe_loading
    from mmseg_ext.comparison.execute import compare
    from mmseg_ext.inference.export import export
    from mmseg_ext.inference.models import get_model, list_models
    from mmseg_ext.inference.prediction import predict
    from mmseg_ext.inference.predictor import Predictor
    from mmseg_ext.own_dataset.check import check_dataset
    from mmseg_ext.own_dataset.new_project import new_project
    from mmseg_ext.reports.page import report
    from mmseg_ext.runs import test, train

__version__ = "1.1.0"

__all__ = [
    "Predictor",
    "StackError",
    "__version__",
    "check_dataset",
    "compare",
    "export",
    "get_model",
    "list_models",
    "new_project",
    "predict",
    "register_all_modules",
    "report",
    "safe_loading",
    "test",
    "train",
    "use_operators_in_pytorch",
]

_ANY_PACKAGE = ("backbones", "datasets", "durable", "engine")
_MMSEG = ("decode_heads", "segmentors", "evaluation", "reports")
# Parts that these folders import, and that import the mm stack themselves.
_BELOW = ("checkpoint", "images", "terminal")

# Imported when they are used. Each command of the shell calls the function of its name.
_FUNCTIONS = {
    "Predictor": "inference.predictor",
    "check_dataset": "own_dataset.check",
    "compare": "comparison.execute",
    "export": "inference.export",
    "get_model": "inference.models",
    "list_models": "inference.models",
    "new_project": "own_dataset.new_project",
    "predict": "inference.prediction",
    "report": "reports.page",
    "safe_loading": "checkpoint.safe_loading",
    "test": "runs",
    "train": "runs",
}


def __getattr__(name: str):
    """Import a function or a folder when it is used.

    Raises:
        StackError: for a function, if mmengine or mmcv cannot be used.
    """
    if name in _FUNCTIONS:
        check_stack(BASE)
        return getattr(importlib.import_module(f"mmseg_ext.{_FUNCTIONS[name]}"), name)
    if name in ("layers", *_ANY_PACKAGE, *_MMSEG):
        return importlib.import_module(f"mmseg_ext.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _RegistersAfterImport(MetaPathFinder):
    """Calls `register` when the first import of the mm stack, or of a part that uses it, ends."""

    names = ("mmengine", "mmcv", "mmseg", "mmdet", "mmpretrain")
    names += tuple(f"mmseg_ext.{folder}" for folder in _ANY_PACKAGE + _MMSEG + _BELOW)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in `names`, with a loader that registers, else None."""
        if name not in self.names:
            return None
        spec: Any = None
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            del spec.loader.exec_module
            # Imports within this one must not register: it has loaded only a part of its package.
            _stop_waiting()
            try:
                with quiet_stack_imports():
                    execute(module)
            finally:
                register()

        spec.loader.exec_module = execute_and_register
        return spec


def _stop_waiting() -> None:
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _RegistersAfterImport)]


def register() -> None:
    """Register what works with the installed packages, as `import mmseg_ext` does."""
    _stop_waiting()
    if (problem := other_project()) is not None:
        warnings.warn(problem, stacklevel=2)
    if stack_problem(BASE) is not None:
        return
    folders = _ANY_PACKAGE if stack_problem() else _ANY_PACKAGE + _MMSEG
    with quiet_stack_imports():
        for name in folders:
            importlib.import_module(f"mmseg_ext.{name}")


def register_all_modules(init_default_scope: bool = True) -> None:
    """Register mmsegmentation's modules and ours, for scripts that build without a Runner.

    Raises:
        StackError: if mmengine, mmcv or mmsegmentation is missing, too old or cannot be imported.
            The message says what to do.
    """
    check_stack()
    from mmseg.utils import register_all_modules as register_mmseg

    register_mmseg(init_default_scope)
    register()


def use_operators_in_pytorch() -> None:
    """Make mmsegmentation and mmdetection importable if mmcv has no compiled operators.

    mmsegmentation 1.2.2 imports the operators even if no model needs them. This call warns and
    replaces missing ones by `mmseg_ext.detection.operators_in_pytorch`. Call it before
    `import mmseg`. The commands of this package call it if needed.
    """
    before = stack_problem()
    importlib.import_module("mmseg_ext.detection.operators_in_pytorch")
    stack_problem.cache_clear()
    if before is not None and stack_problem() is None:
        for name in ("backbones", "datasets"):  # with mmsegmentation they register more
            importlib.reload(importlib.import_module(f"mmseg_ext.{name}"))
        register()


if sys.modules.get("mmengine") is None:
    sys.meta_path.insert(0, _RegistersAfterImport())
else:
    register()
