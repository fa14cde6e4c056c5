"""Labeled images: CIFAR-10 and Tiny-ImageNet from their official archives, or drawn by code.

Nothing is downloaded. CIFAR-10 is read from its binary archive, because the Python archive contains
pickles, which run code when they are loaded.
"""

import io
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
TINY_IMAGENET_ARCHIVE = "tiny-imagenet-200.zip"


class Pictures(NamedTuple):
    """images (N, 3, H, W) in uint8, labels (N,) in int64."""

    images: Tensor
    labels: Tensor


def read_cifar10(path: str | Path) -> tuple[Pictures, Pictures]:
    """Read the training and test images from `cifar-10-binary.tar.gz`."""
    with tarfile.open(path) as archive:
        files = {
            Path(member.name).name: archive.extractfile(member).read()
            for member in archive
            if member.isfile() and member.name.endswith(".bin")
        }

    def pictures(*names: str) -> Pictures:
        content = np.frombuffer(b"".join(files[name] for name in names), np.uint8)
        records = torch.from_numpy(content.reshape(-1, 3073).copy())  # the label, 3 x 32 x 32
        return Pictures(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long())

    return pictures(*(f"data_batch_{i}.bin" for i in range(1, 6))), pictures("test_batch.bin")


def read_tiny_imagenet(path: str | Path) -> tuple[Pictures, Pictures]:
    """Read the training and validation images from `tiny-imagenet-200.zip` (several minutes).

    Classes are numbered in the order of `wnids.txt`.
    """
    root = "tiny-imagenet-200"
    with zipfile.ZipFile(path) as archive:
        number = {n: i for i, n in enumerate(archive.read(f"{root}/wnids.txt").decode().split())}
        train = [
            (name, number[name.split("/")[2]])
            for name in archive.namelist()
            if name.startswith(f"{root}/train/") and name.endswith(".JPEG")
        ]
        rows = archive.read(f"{root}/val/val_annotations.txt").decode().splitlines()
        fields = [row.split("\t") for row in rows]
        val = [(f"{root}/val/images/{name}", number[wnid]) for name, wnid, *_ in fields]
        return _decode(archive, train, "training"), _decode(archive, val, "validation")


def _decode(archive: zipfile.ZipFile, named: list[tuple[str, int]], kind: str) -> Pictures:
    images = np.empty((len(named), 64, 64, 3), np.uint8)
    for i, (name, _) in enumerate(track(named, f"Reading {kind} pictures", transient=True)):
        with Image.open(io.BytesIO(archive.read(name))) as picture:
            images[i] = np.asarray(picture.convert("RGB"))
    labels = torch.tensor([label for _, label in named])
    return Pictures(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels)


def _plus(u: Tensor, v: Tensor) -> Tensor:
    across = torch.maximum(u.abs() - 1, v.abs() - 0.28)
    return torch.minimum(across, torch.maximum(u.abs() - 0.28, v.abs() - 1))


def _frame(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs(), v.abs())


def _two_bars(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum((v.abs() - 0.62).abs() - 0.27, u.abs() - 1)


# Each is negative inside the shape, which fills the square from -1 to 1; v points down.
SHAPES = {
    "disc": lambda u, v: torch.hypot(u, v) - 1,
    "ring": lambda u, v: (torch.hypot(u, v) - 0.78).abs() - 0.24,
    "square": lambda u, v: _frame(u, v) - 0.88,
    "frame": lambda u, v: (_frame(u, v) - 0.78).abs() - 0.2,
    "diamond": lambda u, v: (u.abs() + v.abs() - 1.15) / 2**0.5,
    "plus": _plus,
    "cross": lambda u, v: _plus((u + v) / 2**0.5, (u - v) / 2**0.5),
    "triangle": lambda u, v: torch.maximum(v - 0.8, (2 * u.abs() - v - 1) / 5**0.5),
    "two bars, lying": _two_bars,
    "two bars, standing": lambda u, v: _two_bars(v, u),
}


def make_shapes(count: int, seed: int, size: int = 16) -> Pictures:
    """Draw `count` images of size x size: a bright shape near the center, on a dark background.

    The classes are `SHAPES`. Position, radius and both colors are random.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator)

    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    radius = uniform(0.3, 0.42, count, 1, 1) * size
    centre_u, centre_v = uniform(0.44, 0.56, 2, count, 1, 1) * size
    pixel = torch.arange(size) + 0.5
    u = ((pixel[None, None, :] - centre_u) / radius).expand(-1, size, -1)  # N, H, W
    v = ((pixel[None, :, None] - centre_v) / radius).expand(-1, -1, size)  # N, H, W
    cover = torch.empty(count, size, size)
    for label, shape in enumerate(SHAPES.values()):
        chosen = labels == label
        distance = shape(u[chosen], v[chosen]) * radius[chosen]  # in pixels
        cover[chosen] = (0.5 - distance).clamp(0, 1)
    ground = uniform(0, 0.3, count, 3, 1, 1)
    bright = uniform(0.35, 1, count, 3, 1, 1)
    bright[torch.arange(count), torch.randint(3, (count,), generator=generator)] = 1
    images = ground + cover[:, None] * (bright - ground)
    return Pictures((images * 255).round().to(torch.uint8), labels)


def to_float(images: Tensor) -> Tensor:
    """Map uint8 images to [-1, 1], the range of the generator."""
    return images.float() / 127.5 - 1


def to_uint8(images: Tensor) -> Tensor:
    """Map images in [-1, 1] to uint8."""
    return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
