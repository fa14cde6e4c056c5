"""How far a prediction depends on distant pixels: the effective receptive field of a model.

Luo et al., "Understanding the Effective Receptive Field in Deep Convolutional Neural Networks",
arXiv:1701.04128.
"""

import torch
from torch import Tensor, nn


def effective_receptive_field(model: nn.Module, images: Tensor, seed: int = 0) -> Tensor:
    """Mean |gradient| of the output's middle position by each pixel, (H, W), summing to one.

    `model` maps images (B, C, H, W) to (B, K, h, w); the K outputs are weighted by random signs,
    drawn anew for each image, so that they do not cancel. The model's mode is left as it is.

    Raises:
        ValueError: where no gradient reaches the images.
    """
    images = images.detach().requires_grad_()
    output = model(images)
    middle = output[:, :, output.shape[2] // 2, output.shape[3] // 2]  # (B, K)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, middle.shape, generator=generator).to(middle) * 2 - 1
    (gradient,) = torch.autograd.grad((middle * signs).sum(), images)
    sizes = gradient.abs().sum(1)  # (B, H, W)
    totals = sizes.sum((1, 2), keepdim=True)
    if not (totals > 0).all():
        raise ValueError("no gradient reaches the images: the middle output does not see them")
    return (sizes / totals).mean(0)


def share_beyond(field: Tensor, radius: float) -> float:
    """The part of a map (H, W) farther than `radius` pixels from its middle."""
    rows, columns = (torch.arange(n) - n // 2 for n in field.shape)
    far = torch.hypot(rows[:, None].float(), columns[None].float()) > radius
    return float(field[far].sum() / field.sum())
