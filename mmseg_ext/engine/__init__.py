"""What the training loop lacks: hooks, optimizer constructors, schedulers."""

from mmseg_ext.engine.distributed import CPUDistributedDataParallel
from mmseg_ext.engine.held_poly_lr import HeldPolyLR
from mmseg_ext.engine.optim_wrapper_constructor import RoleOptimWrapperConstructor
from mmseg_ext.engine.skipped_images import SkippedImagesHook

__all__ = [
    "CPUDistributedDataParallel",
    "HeldPolyLR",
    "RoleOptimWrapperConstructor",
    "SkippedImagesHook",
]
