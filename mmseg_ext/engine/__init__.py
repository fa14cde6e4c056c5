"""Training from a config: building a run, mixed precision, schedules and the record of a run."""

import mmseg_ext.converters.package_weights  # noqa: F401 (registers its scheme)
from mmseg_ext.durable import *  # noqa: F403 (in version 0.3.0 these names were here)
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
