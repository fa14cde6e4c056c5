"""EAGAN (SAGAN with external attention), and SAGAN for comparison.

Papers: Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks,
arXiv:2105.02358, table 5; Self-Attention Generative Adversarial Networks (SAGAN), arXiv:1805.08318.
Published code: POSTECH-CVLab/PyTorch-StudioGAN, `src/models/resnet.py`, `src/utils/ops.py` and
`src/configs/{CIFAR10,Tiny_ImageNet}/SAGAN.yaml`, which the paper builds on. There is no published
code of EAGAN.

Deviations: none with `attention="self"`; tests compare both networks with the published code. In
both, the ReLU of a discriminator block works in place, so the shortcut gets the rectified input.

Our choices for external attention, which the paper does not define: it maps C channels to C/2, the
width of SAGAN's values, attends to 64 slots, and maps back to C. At C = 256, the width of the
generator on CIFAR-10, it has exactly as many parameters as SAGAN's self-attention. As in SAGAN, the
linear maps have spectral norm and no bias, and the block adds its result times sigma, which starts
at zero.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from mmseg_ext.layers import ExternalAttention

Attention = Literal["external", "self"]
LATENT = 128  # the dimension of z


@dataclass(frozen=True)
class Architecture:
    """The published configuration for a dataset. Blocks are counted from one."""

    image_size: int  # of a side; each generator block doubles the side
    num_classes: int
    generator: tuple[int, ...]  # channels of the first map, then of each block's output
    discriminator: tuple[int, ...]  # channels of each block's output
    halvings: int  # how many of the discriminator's blocks, from the first, halve the side
    attention_after: tuple[int, int]  # the generator's and the discriminator's block

    @property
    def first_size(self) -> int:
        """The side length of the first feature map of the generator."""
        return self.image_size >> (len(self.generator) - 1)


CIFAR10 = Architecture(32, 10, (256,) * 4, (128,) * 4, halvings=2, attention_after=(2, 1))
TINY_IMAGENET = Architecture(
    64,
    200,
    (1024, 512, 256, 128, 64),
    (64, 128, 256, 512, 1024),
    halvings=4,
    attention_after=(3, 1),
)


def _spectral(module: nn.Module) -> nn.Module:
    """Initialize with an orthogonal weight and zero bias, and add spectral norm."""
    nn.init.orthogonal_(module.weight)
    if getattr(module, "bias", None) is not None:
        nn.init.zeros_(module.bias)
    return spectral_norm(module, eps=1e-6)


def _conv(in_channels: int, out_channels: int, size: int, bias: bool = True) -> nn.Module:
    return _spectral(nn.Conv2d(in_channels, out_channels, size, padding=size // 2, bias=bias))


class SelfAttentionBlock(nn.Module):
    """x + sigma out(g(x) softmax(theta(x)^T phi(x))^T), with 2x2 max pooling of phi and g."""

    def __init__(self, channels: int):
        super().__init__()
        self.sigma = nn.Parameter(torch.zeros(1))
        self.theta = _conv(channels, channels // 8, 1, bias=False)
        self.phi = _conv(channels, channels // 8, 1, bias=False)
        self.g = _conv(channels, channels // 2, 1, bias=False)
        self.out = _conv(channels // 2, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, H, W); H and W must be even."""
        theta = self.theta(x).flatten(2)  # B, C/8, N
        phi = F.max_pool2d(self.phi(x), 2).flatten(2)  # B, C/8, N/4
        g = F.max_pool2d(self.g(x), 2).flatten(2)  # B, C/2, N/4
        attention = torch.bmm(theta.transpose(1, 2), phi).softmax(-1)  # B, N, N/4
        attended = torch.bmm(g, attention.transpose(1, 2))  # B, C/2, N
        return x + self.sigma * self.out(attended.unflatten(2, x.shape[2:]))


class ExternalAttentionBlock(nn.Module):
    """x + sigma out(ExternalAttention(query(x)))."""

    def __init__(self, channels: int, memory_size: int = 64):
        super().__init__()
        self.sigma = nn.Parameter(torch.zeros(1))
        self.query = _conv(channels, channels // 2, 1, bias=False)
        self.memories = ExternalAttention(channels // 2, memory_size)
        _spectral(self.memories.mk)
        _spectral(self.memories.mv)
        self.out = _conv(channels // 2, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, H, W)."""
        tokens = self.query(x).flatten(2).transpose(1, 2)  # B, N, C/2
        attended = self.memories(tokens).transpose(1, 2)  # B, C/2, N
        return x + self.sigma * self.out(attended.unflatten(2, x.shape[2:]))


ATTENTION = {"external": ExternalAttentionBlock, "self": SelfAttentionBlock}


class ConditionalBatchNorm(nn.Module):
    """Batch norm with a scale (around one) and a shift for each class."""

    def __init__(self, num_classes: int, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, eps=1e-4, affine=False)
        self.scale = _spectral(nn.Embedding(num_classes, channels))
        self.shift = _spectral(nn.Embedding(num_classes, channels))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        scale = 1 + self.scale(label)[:, :, None, None]
        return torch.addcmul(self.shift(label)[:, :, None, None], self.norm(x), scale)


class GeneratorBlock(nn.Module):
    """Upsampling and two 3x3 convolutions, with a 1x1 convolution as the shortcut."""

    def __init__(self, in_channels: int, out_channels: int, num_classes: int):
        super().__init__()
        self.norm1 = ConditionalBatchNorm(num_classes, in_channels)
        self.norm2 = ConditionalBatchNorm(num_classes, out_channels)
        self.shortcut = _conv(in_channels, out_channels, 1)
        self.conv1 = _conv(in_channels, out_channels, 3)
        self.conv2 = _conv(out_channels, out_channels, 3)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        out = F.interpolate(F.relu(self.norm1(x, label)), scale_factor=2)
        out = self.conv2(F.relu(self.norm2(self.conv1(out), label)))
        # A 1x1 convolution of repeated pixels repeats its results: convolved first, it costs 1/4.
        return out + F.interpolate(self.shortcut(x), scale_factor=2)


class Generator(nn.Module):
    """A network from latent vectors and classes to images."""

    def __init__(self, architecture: Architecture, attention: Attention = "external"):
        super().__init__()
        channels = architecture.generator
        self.num_classes = architecture.num_classes
        self.first_shape = (channels[0], architecture.first_size, architecture.first_size)
        self.first = _spectral(nn.Linear(LATENT, channels[0] * architecture.first_size**2))
        self.blocks = nn.ModuleList()
        for index, (narrow, wide) in enumerate(pairwise(channels), 1):
            self.blocks.append(GeneratorBlock(narrow, wide, architecture.num_classes))
            if index == architecture.attention_after[0]:
                self.blocks.append(ATTENTION[attention](wide))
        self.norm = nn.BatchNorm2d(channels[-1], eps=1e-4)
        self.last = _conv(channels[-1], 3, 3)

    def forward(self, latent: Tensor, label: Tensor) -> Tensor:
        """Map latent (B, 128) and label (B,) to images (B, 3, H, W) in [-1, 1]."""
        x = self.first(latent).unflatten(1, self.first_shape)  # B, C, h, w
        for block in self.blocks:
            x = block(x, label) if isinstance(block, GeneratorBlock) else block(x)
        return self.last(F.relu(self.norm(x))).tanh()

    def sample(self, label: Tensor) -> Tensor:
        """Generate images (B, 3, H, W) for label (B,) from random latent vectors."""
        return self(torch.randn(len(label), LATENT, device=label.device), label)


class FirstDiscriminatorBlock(nn.Module):
    """Two 3x3 convolutions and pooling, plus a shortcut that pools the image."""

    def __init__(self, out_channels: int):
        super().__init__()
        self.shortcut = _conv(3, out_channels, 1)
        self.conv1 = _conv(3, out_channels, 3)
        self.conv2 = _conv(out_channels, out_channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = F.avg_pool2d(self.conv2(F.relu(self.conv1(x))), 2)
        return out + self.shortcut(F.avg_pool2d(x, 2))


class DiscriminatorBlock(nn.Module):
    """ReLU, then two 3x3 convolutions plus a shortcut; both get the rectified input."""

    def __init__(self, in_channels: int, out_channels: int, halves: bool):
        super().__init__()
        self.halves = halves
        changes = halves or in_channels != out_channels
        self.shortcut = _conv(in_channels, out_channels, 1) if changes else nn.Identity()
        self.conv1 = _conv(in_channels, out_channels, 3)
        self.conv2 = _conv(out_channels, out_channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        out = self.conv2(F.relu(self.conv1(x))) + self.shortcut(x)
        return F.avg_pool2d(out, 2) if self.halves else out


class Discriminator(nn.Module):
    """A network from images and classes to scores: linear, plus a projection on the class."""

    def __init__(self, architecture: Architecture, attention: Attention = "external"):
        super().__init__()
        channels = architecture.discriminator
        self.blocks = nn.Sequential()
        for index, wide in enumerate(channels, 1):
            if index == 1:
                self.blocks.append(FirstDiscriminatorBlock(wide))
            else:
                halves = index <= architecture.halvings
                self.blocks.append(DiscriminatorBlock(channels[index - 2], wide, halves))
            if index == architecture.attention_after[1]:
                self.blocks.append(ATTENTION[attention](wide))
        self.score = _spectral(nn.Linear(channels[-1], 1))
        self.classes = _spectral(nn.Embedding(architecture.num_classes, channels[-1]))

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        """Map image (B, 3, H, W) in [-1, 1] and label (B,) to scores (B,)."""
        features = F.relu(self.blocks(image)).sum((2, 3))  # B, C
        return self.score(features)[:, 0] + (self.classes(label) * features).sum(1)


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Return the hinge loss for the scores of real and generated images."""
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def generator_loss(fake: Tensor) -> Tensor:
    return -fake.mean()
