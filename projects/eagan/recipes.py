"""Datasets with their networks and schedules.

CIFAR-10 and Tiny-ImageNet follow PyTorch-StudioGAN's configurations of SAGAN. `shapes` is ours and
trains in ten minutes on two cores.
"""

import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from projects.eagan.data import (
    CIFAR10_ARCHIVE,
    TINY_IMAGENET_ARCHIVE,
    Pictures,
    make_shapes,
    read_cifar10,
    read_tiny_imagenet,
)
from projects.eagan.model import CIFAR10, TINY_IMAGENET, Architecture

SHAPES = Architecture(16, 10, (64, 64, 32), (32, 64, 64), halvings=2, attention_after=(1, 1))

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Recipe:
    """Networks and schedule for a dataset."""

    architecture: Architecture
    batch: int  # pictures of a step, real and generated each
    rates: tuple[float, float]  # of the generator and of the discriminator, for Adam
    betas: tuple[float, float]
    discriminator_steps: int  # before each step of the generator
    steps: int  # of the generator
    archive: str | None = None  # without one the data is made by code


RECIPES = {
    "shapes": Recipe(SHAPES, 32, (1e-3, 1e-3), (0.5, 0.999), 1, 800),
    "cifar10": Recipe(CIFAR10, 64, (2e-4, 2e-4), (0.5, 0.999), 5, 100_000, CIFAR10_ARCHIVE),
    "tiny-imagenet": Recipe(
        TINY_IMAGENET, 256, (1e-4, 4e-4), (0.0, 0.999), 1, 100_000, TINY_IMAGENET_ARCHIVE
    ),
}


def read(data: str, archive: str | Path | None) -> tuple[Pictures, Pictures]:
    """Return the training and test images of a dataset.

    Raises:
        ValueError: if the archive is not given, missing, damaged or a different file.
    """
    name = RECIPES[data].archive
    if name is None:
        return make_shapes(8000, seed=0), make_shapes(2000, seed=1)
    if archive is None:
        raise ValueError(f"--data {data}: needs {name}; add --archive FILE")
    try:
        return (read_cifar10 if data == "cifar10" else read_tiny_imagenet)(archive)
    except (OSError, EOFError, KeyError, ValueError, *_DAMAGED) as error:
        raise ValueError(f"{archive}: not a readable {name}: {error}") from error
