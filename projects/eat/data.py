"""Labelled point clouds: ModelNet40 and ShapeNet-part from their HDF5 files, or solids by code.

Nothing is downloaded. The files are those that PointNet's authors prepared and that PCT, DGCNN and
others read: 2,048 points to a cloud, each cloud in the unit sphere.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

MODELNET40 = "modelnet40_ply_hdf5_2048"
SHAPENET_PART = "shapenet_part_seg_hdf5_data (or hdf5_data)"
# Parts of the 16 classes, numbered through: airplane 0-3, bag 4-5, cap 6-7, car 8-11, chair 12-15,
# earphone 16-18, guitar 19-21, knife 22-23, lamp 24-27, laptop 28-29, motorbike 30-35, mug 36-37,
# pistol 38-40, rocket 41-43, skateboard 44-46, table 47-49.
_COUNTS = (4, 2, 2, 4, 4, 3, 3, 2, 4, 2, 6, 2, 3, 3, 3, 3)
SHAPENET_PARTS = [list(range(sum(_COUNTS[:i]), sum(_COUNTS[: i + 1]))) for i in range(16)]


class Clouds(NamedTuple):
    """points (n, p, 3), labels (n,), and the part of each point (n, p) where it is known."""

    points: Tensor
    labels: Tensor
    parts: Tensor | None = None


def _read(folder: str | Path, stems: Sequence[str], names: Sequence[str]) -> Clouds:
    import h5py

    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for stem in stems:
        with h5py.File(Path(folder) / f"ply_data_{stem}.h5") as file:
            for name in names:
                found[name].append(torch.from_numpy(file[name][:]))
    data, labels, *part = (torch.cat(found[name]) for name in names)
    return Clouds(data.float(), labels.long().flatten(), *(p.long() for p in part))


def read_modelnet40(folder: str | Path) -> tuple[Clouds, Clouds]:
    """9,840 clouds to train on and 2,468 to test on, of 40 classes."""
    names = ("data", "label")
    train = _read(folder, [f"train{i}" for i in range(5)], names)
    return train, _read(folder, ["test0", "test1"], names)


def read_shapenet_part(folder: str | Path) -> tuple[Clouds, Clouds]:
    """Training and validation clouds joined, as is usual, and test clouds; 16 classes, 50 parts."""
    names = ("data", "label", "pid")
    train = _read(folder, [*(f"train{i}" for i in range(6)), "val0"], names)
    return train, _read(folder, ["test0", "test1"], names)


def augmented(points: Tensor, drop: float) -> Tensor:
    """Clouds (B, N, 3) scaled along each axis by 2/3 to 3/2 and moved by at most 0.2, at random.

    Args:
        drop: the largest share of points that a cloud loses; they fall onto its first point.
    """
    batch, count, _ = points.shape
    lost = torch.rand(batch, count) <= torch.rand(batch, 1) * drop
    points = torch.where(lost[..., None] & (drop > 0), points[:, :1], points)
    scale = 2 / 3 + (3 / 2 - 2 / 3) * torch.rand(batch, 1, 3)
    shift = 0.4 * torch.rand(batch, 1, 3) - 0.2
    return points * scale + shift
