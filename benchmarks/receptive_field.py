"""Effective receptive field: how much a prediction depends on distant pixels.

Luo et al., "Understanding the Effective Receptive Field in Deep Convolutional Neural Networks",
arXiv:1701.04128.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def effective_receptive_field(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return the mean |gradient| of the middle output with respect to each pixel, (H, W).

    The values sum to one. `model` maps images (B, C, H, W) to (B, K, h, w). The K outputs are
    weighted by random signs for each image, otherwise their gradients could cancel.
    """
    images = images.detach().requires_grad_()
    output = model(images)
    middle = output[:, :, output.shape[2] // 2, output.shape[3] // 2]  # (B, K)
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, middle.shape, generator=generator).to(middle) * 2 - 1
    (gradient,) = torch.autograd.grad((middle * signs).sum(), images)
    sizes = gradient.abs().sum(1)  # (B, H, W)
    return (sizes / sizes.sum((1, 2), keepdim=True)).mean(0)


def share_beyond(field: Tensor, radius: float) -> float:
    """Return the share of a map (H, W) farther than `radius` pixels from its middle."""
    rows, columns = (torch.arange(n) - n // 2 for n in field.shape)
    far = torch.hypot(rows[:, None].float(), columns[None].float()) > radius
    return float(field[far].sum() / field.sum())
