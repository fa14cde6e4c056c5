"""Polynomial decay that is recomputed every few iterations and held in between.

The published VOC training of EANet (arXiv 2105.02358, `train_torch.py`, `poly_lr_scheduler`) sets
the rate to `lr * (1 - i / n) ** power` at iterations i that are multiples of 10 and leaves it alone
otherwise. Its loop runs i = 0 ... n inclusive, so that the rate of the last iteration is zero.
"""

from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import PolyParamScheduler
from mmengine.registry import PARAM_SCHEDULERS


@PARAM_SCHEDULERS.register_module()
class HeldPolyLR(LRSchedulerMixin, PolyParamScheduler):
    """mmengine's `PolyLR` with the value held for `interval` iterations.

    As there, the value reaches `eta_min` at iteration `end - 1`: the published schedule of n
    iterations plus the last one at rate zero is `begin=0, end=n + 1`. `interval` is in iterations
    (in epochs with `by_epoch=True`).
    """

    def __init__(self, optimizer, *args, interval: int = 10, **kwargs):
        self.interval = interval
        super().__init__(optimizer, *args, **kwargs)

    def _get_value(self) -> list[float]:
        step = self.last_step - self.last_step % self.interval
        factor = (1 - step / self.total_iters) ** self.power
        return [self.eta_min + (base - self.eta_min) * factor for base in self.base_values]
