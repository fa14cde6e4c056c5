"""Training from a config: building a run, mixed precision, schedules and the record of a run."""

import warnings

from mmseg_ext import durable
from mmseg_ext.engine.amp import PortableAmpOptimWrapper
from mmseg_ext.engine.distributed import CPUDistributedDataParallel
from mmseg_ext.engine.run_record import RunRecordHook
from mmseg_ext.engine.voc_optimization import HeldPolyLR, RoleOptimWrapperConstructor

__all__ = [
    "CPUDistributedDataParallel",
    "HeldPolyLR",
    "PortableAmpOptimWrapper",
    "RoleOptimWrapperConstructor",
    "RunRecordHook",
]


def __getattr__(name: str):
    """Return a name that was here until version 0.3.0 and is now in `mmseg_ext.durable`."""
    if name not in durable.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"mmseg_ext.engine.{name} is mmseg_ext.durable.{name} since 1.0.0; mmseg_ext.engine will "
        "lose this name in 2.0.0",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(durable, name)
