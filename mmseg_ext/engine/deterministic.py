"""`randomness=dict(deterministic=True)` for our models: the operations that would refuse it.

torch's deterministic algorithms refuse, on CUDA, the two-dimensional negative log-likelihood of
mmsegmentation's `CrossEntropyLoss` and the backward pass of adaptive average pooling. The loss is
the same on a list of pixels, and the pooling the same as two small matrix products; both have
deterministic kernels. Bilinear resizing is decomposed by torch itself (2.1 and newer).
"""

import os

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d

from mmseg_ext.environment import stack_problem

if stack_problem() is None:
    from mmseg.models.losses.cross_entropy_loss import CrossEntropyLoss, cross_entropy
else:  # no model holds mmsegmentation's loss
    CrossEntropyLoss, cross_entropy = (), None


def cross_entropy_of_pixels(pred: Tensor, label: Tensor, weight: Tensor | None = None, **kwargs):
    """mmsegmentation's `cross_entropy` on a list of pixels: same arguments, same value.

    `pred` is (N, C, ...), `label` and `weight` (N, ...).
    """
    scores = pred.movedim(1, -1).reshape(-1, pred.shape[1])  # (N * pixels, C)
    weight = None if weight is None else weight.expand_as(label).reshape(-1)  # (N * pixels)
    loss = cross_entropy(scores, label.reshape(-1), weight, **kwargs)
    return loss.view_as(label) if kwargs.get("reduction") == "none" else loss


class MatrixAvgPool2d(nn.AdaptiveAvgPool2d):
    """`nn.AdaptiveAvgPool2d` as a product from the left and one from the right."""

    def forward(self, x: Tensor) -> Tensor:
        size = self.output_size if isinstance(self.output_size, tuple) else (self.output_size,) * 2
        height, width = (out or side for out, side in zip(size, x.shape[-2:], strict=True))
        rows = _means(x.shape[-2], height, x)  # (height, H)
        columns = _means(x.shape[-1], width, x)  # (width, W)
        return rows @ x @ columns.T  # (B, C, height, width)


def _means(side: int, parts: int, like: Tensor) -> Tensor:
    """(parts, side): row i holds the weights of part i, which may overlap its neighbours."""
    return adaptive_avg_pool1d(torch.eye(side, dtype=like.dtype, device=like.device), parts).T


def make_deterministic(model: nn.Module) -> None:
    """Replace what torch's deterministic algorithms refuse on CUDA; the values stay the same.

    Also sets `CUBLAS_WORKSPACE_CONFIG`, which CUDA's matrix products need, where it is not set.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for module in list(model.modules()):
        if isinstance(module, CrossEntropyLoss) and module.cls_criterion is cross_entropy:
            module.cls_criterion = cross_entropy_of_pixels
        for name, child in module.named_children():
            if type(child) is nn.AdaptiveAvgPool2d:
                setattr(module, name, MatrixAvgPool2d(child.output_size))
