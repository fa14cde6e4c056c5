"""How far a prediction depends on distant pixels: a probe for heads that gather context.

Two measures. The effective receptive field (Luo et al., arXiv:1701.04128) is the mean size of the
gradient of one position's output by the pixels of the image. The far-cue set has two classes that
look the same: which one a target is, a coloured cue elsewhere in the image says. A network whose
receptive field ends before the cue gets half of the targets right, whatever it learns.

The networks share all but one block: three convolutions to output stride 4, a 3x3 convolution, the
block, a 3x3 convolution, a classifier.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from mmseg.models.decode_heads.da_head import CAM, PAM
from torch import Tensor, nn

from mmseg_ext.layers.external_attention import ExternalAttention2d
from mmseg_ext.layers.lambda_layer import LambdaLayer
from mmseg_ext.layers.manhattan_attention import ManhattanAttention

SIZE = 64
DISTANCES = (12, 24, 36, 48)
IGNORED = 255
_SIDE = 8  # of target and cue, pixels
_STRIDE = 4
_DISTRACTORS = 6


# --- the far-cue set ----------------------------------------------------------------------------


def far_cue_batch(
    count: int, distance: int | None, rng: np.random.Generator, centred: bool = False
) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 64, 64) and labels (count, 64, 64): 0 or 1 on the target, 255 elsewhere.

    A white target, a cue that is red (class 0) or green (class 1) with its centre `distance`
    pixels from the target's in a random direction, blue squares that mean nothing, and noise.
    `distance` None draws one of `DISTANCES` for each image; `centred` puts targets in the middle.

    Raises:
        ValueError: for a distance at which no cue fits beside a target.
    """
    if distance is not None and not _SIDE < distance <= DISTANCES[-1]:
        raise ValueError(f"distance must lie between {_SIDE + 1} and {DISTANCES[-1]}: {distance}")
    if centred and distance is not None and distance > SIZE // 2 - _SIDE:
        raise ValueError(f"distance must be at most {SIZE // 2 - _SIDE} when centred: {distance}")
    images = rng.normal(0, 0.3, (count, 3, SIZE, SIZE))
    labels = np.full((count, SIZE, SIZE), IGNORED)
    for image, label in zip(images, labels, strict=True):
        kind = rng.integers(2)
        target, cue = _places(distance or int(rng.choice(DISTANCES)), rng, centred)
        for _ in range(_DISTRACTORS):
            _paint(image, rng.integers(_SIDE // 2, SIZE - _SIDE // 2, 2), (0, 0, 2))
        _paint(image, cue, (2, 0, 0) if kind == 0 else (0, 2, 0))
        _paint(image, target, (2, 2, 2))
        label[_square(target)] = kind
    return torch.from_numpy(images).float(), torch.from_numpy(labels)


def _places(distance: int, rng: np.random.Generator, centred: bool):
    """Centres (row, column) of target and cue, both wholly inside the image."""
    low, high = _SIDE // 2, SIZE - _SIDE // 2
    while True:
        target = np.full(2, SIZE // 2) if centred else rng.integers(low, high + 1, 2)
        angle = rng.uniform(0, 2 * np.pi)
        offset = distance * np.array([np.sin(angle), np.cos(angle)])
        cue = np.rint(target + offset).astype(int)
        if (cue >= low).all() and (cue <= high).all():
            return target, cue


def _square(centre) -> tuple[slice, slice]:
    return tuple(slice(c - _SIDE // 2, c + _SIDE // 2) for c in centre)


def _paint(image: np.ndarray, centre, colour: tuple[int, int, int]) -> None:
    image[(slice(None), *_square(centre))] = np.array(colour)[:, None, None]


# --- the networks -------------------------------------------------------------------------------


class _Manhattan(nn.Module):
    """x + attention(norm(x)) on (B, C, H, W)."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.attention = ManhattanAttention(channels, num_heads=4)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm(x.permute(0, 2, 3, 1)))  # (B, H, W, C)
        return x + attended.permute(0, 3, 1, 2)


class _Dual(nn.Module):
    """DANet's two attentions, over positions and over channels, summed; both have residuals."""

    def __init__(self, channels: int):
        super().__init__()
        self.position, self.channel = PAM(channels, channels // 4), CAM()

    def forward(self, x: Tensor) -> Tensor:
        return self.position(x) + self.channel(x)


class _Lambda(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        grid = SIZE // _STRIDE
        self.layer = LambdaLayer(channels, receptive_field=None, resolution=(grid, grid))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.layer(x))


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


BLOCKS: dict[str, Callable[[int], nn.Module]] = {
    "FCN": lambda channels: _conv(channels, channels),
    "EA": lambda channels: ExternalAttention2d(channels, memory_size=64),
    "EA, softmax over slots": lambda channels: ExternalAttention2d(
        channels, memory_size=64, normalization="softmax"
    ),
    "DANet": _Dual,
    "MaSA": _Manhattan,
    "lambda": _Lambda,
}
"""What stands between the convolutions. EA's second form normalises each position on its own: all
that double normalisation adds is missing from it."""


def probe_network(name: str, channels: int = 32) -> nn.Sequential:
    """The network around a block of `BLOCKS`: (B, 3, H, W) to logits (B, 2, H, W)."""
    return nn.Sequential(
        _conv(3, channels, 2),
        _conv(channels, channels, 2),
        _conv(channels, channels),
        _conv(channels, channels),
        BLOCKS[name](channels),
        _conv(channels, channels),
        nn.Conv2d(channels, 2, 1),
        nn.Upsample(scale_factor=_STRIDE, mode="bilinear", align_corners=False),
    )


# --- effective receptive field ------------------------------------------------------------------


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


def share_beyond(field_map: Tensor, radius: float) -> float:
    """The part of a map (H, W) farther than `radius` pixels from its middle."""
    middle = [n // 2 for n in field_map.shape]
    rows, columns = (torch.arange(n) - m for n, m in zip(field_map.shape, middle, strict=True))
    far = torch.hypot(rows[:, None].float(), columns[None].float()) > radius
    return float(field_map[far].sum() / field_map.sum())


# --- the probe ----------------------------------------------------------------------------------


@dataclass
class Probe:
    """One trained network.

    Attributes:
        accuracy: share of the targets' pixels that are right, by distance of the cue; chance is
            one half.
        beyond: share of the effective receptive field beyond 24 pixels, before and after training.
        field_map: effective receptive field after training (H, W).
    """

    name: str
    seed: int
    parameters: int
    accuracy: dict[int, float] = field(default_factory=dict)
    beyond: tuple[float, float] = (0.0, 0.0)
    field_map: Tensor | None = None


RADIUS = 24


def run_probe(
    name: str, seed: int = 0, steps: int = 300, batch: int = 16, channels: int = 32
) -> Probe:
    """Train a network on the far-cue set with cues at all distances, and measure it."""
    torch.manual_seed(seed)
    model = probe_network(name, channels)
    probe = Probe(name, seed, sum(p.numel() for p in model.parameters()))
    rng = np.random.default_rng(seed)
    centred, _ = far_cue_batch(32, 20, np.random.default_rng(10_000), centred=True)
    before = share_beyond(effective_receptive_field(model.eval(), centred), RADIUS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    model.train()
    for _ in range(steps):
        images, labels = far_cue_batch(batch, None, rng)
        loss = F.cross_entropy(model(images), labels, ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    for distance in DISTANCES:
        probe.accuracy[distance] = accuracy(model, distance)
    probe.field_map = effective_receptive_field(model, centred)
    probe.beyond = (before, share_beyond(probe.field_map, RADIUS))
    return probe


@torch.no_grad()
def accuracy(model: nn.Module, distance: int, count: int = 256) -> float:
    """Share of the targets' pixels that the model gets right with cues at a distance."""
    images, labels = far_cue_batch(count, distance, np.random.default_rng(20_000 + distance))
    predicted = torch.cat([model(part).argmax(1) for part in images.split(64)])
    used = labels != IGNORED
    return float((predicted == labels)[used].float().mean())
