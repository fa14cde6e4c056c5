"""Training runs that can be killed at any moment and resume bit-exactly.

With `runner_type = 'DurableRunner'` and the hooks of this folder:

- a resumed run has the weights, random streams, scores and logged losses of an uninterrupted one;
- a complete checkpoint and the best one exist at any moment, and no other run's files change;
- stop signals save, and a second training in the same folder is refused;
- loading weights runs no code, and reports how much of the model they fill;
- a loss or gradient that is not finite stops the run before the step.

docs/reliability.md has the conditions. This folder knows nothing of segmentation.
"""

from mmseg_ext.durable.checkpoint_hooks import DurableCheckpointHook, StopOnSignalHook
from mmseg_ext.durable.finite_loss import FiniteLossHook
from mmseg_ext.durable.randomness import PositionedInfiniteSampler, PositionedSampler
from mmseg_ext.durable.runner import DurableRunner

__all__ = [
    "DurableCheckpointHook",
    "DurableRunner",
    "FiniteLossHook",
    "PositionedInfiniteSampler",
    "PositionedSampler",
    "StopOnSignalHook",
]
