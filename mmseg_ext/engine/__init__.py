"""Training: the resumable runner, its hooks, optimizer constructors and schedulers."""

from mmseg_ext.durable.finite_loss import FiniteLossHook
from mmseg_ext.durable.randomness import PositionedInfiniteSampler, PositionedSampler
from mmseg_ext.durable.runner import DurableRunner
from mmseg_ext.durable.saving import DurableCheckpointHook, StopOnSignalHook
from mmseg_ext.engine.amp import PortableAmpOptimWrapper
from mmseg_ext.engine.distributed import CPUDistributedDataParallel
from mmseg_ext.engine.run_record import RunRecordHook
from mmseg_ext.engine.voc_schedule import HeldPolyLR, RoleOptimWrapperConstructor

__all__ = [
    "CPUDistributedDataParallel",
    "DurableCheckpointHook",
    "DurableRunner",
    "FiniteLossHook",
    "HeldPolyLR",
    "PortableAmpOptimWrapper",
    "PositionedInfiniteSampler",
    "PositionedSampler",
    "RoleOptimWrapperConstructor",
    "RunRecordHook",
    "StopOnSignalHook",
]
