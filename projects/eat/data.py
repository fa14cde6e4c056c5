"""Labeled point clouds: ModelNet40 and ShapeNet-part from HDF5 files, or solids made by code.

Nothing is downloaded. PointNet's authors prepared the files, which PCT and DGCNN use, too: 2,048
points per cloud, each cloud in the unit sphere.
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
    """points (n, p, 3), labels (n,), and if known the part of each point (n, p)."""

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
    """Read 9,840 training and 2,468 test clouds of 40 classes."""
    names = ("data", "label")
    train = _read(folder, [f"train{i}" for i in range(5)], names)
    return train, _read(folder, ["test0", "test1"], names)


def read_shapenet_part(folder: str | Path) -> tuple[Clouds, Clouds]:
    """Read training (with validation, as usual) and test clouds of 16 classes and 50 parts."""
    names = ("data", "label", "pid")
    train = _read(folder, [*(f"train{i}" for i in range(6)), "val0"], names)
    return train, _read(folder, ["test0", "test1"], names)


def augmented(points: Tensor, drop: float) -> Tensor:
    """Scale clouds (B, N, 3) randomly by 2/3 to 3/2 per axis, and move them by at most 0.2.

    Args:
        drop: largest share of points to drop. Dropped points are moved to the first point.
    """
    batch, count, _ = points.shape
    lost = torch.rand(batch, count) <= torch.rand(batch, 1) * drop
    points = torch.where(lost[..., None] & (drop > 0), points[:, :1], points)
    scale = 2 / 3 + (3 / 2 - 2 / 3) * torch.rand(batch, 1, 3)
    shift = 0.4 * torch.rand(batch, 1, 3) - 0.2
    return points * scale + shift
