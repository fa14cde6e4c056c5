"""Labelled point clouds: ModelNet40 and ShapeNet-part from their HDF5 files, or solids by code.

Nothing is downloaded. The files are those that PointNet's authors prepared and that PCT, DGCNN and
others read: 2,048 points to a cloud, each cloud in the unit sphere.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from projects.eat.sampling import require_clouds

MODELNET40 = "modelnet40_ply_hdf5_2048"
SHAPENET_PART = "shapenet_part_seg_hdf5_data (or hdf5_data)"
_FILES = {
    MODELNET40: {"train": [f"train{i}" for i in range(5)], "test": ["test0", "test1"]},
    SHAPENET_PART: {
        "train": [f"train{i}" for i in range(6)] + ["val0"],
        "test": ["test0", "test1"],
    },
}
_SOURCES = {
    MODELNET40: "https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip",
    SHAPENET_PART: "https://shapenet.cs.stanford.edu/media/shapenet_part_seg_hdf5_data.zip",
}
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


def _refused(path: Path, kind: str, problem: str) -> ValueError:
    return ValueError(f"{path}: {problem}; expected the folder {kind} from {_SOURCES[kind]}")


def _read(folder: Path, kind: str, split: str, classes: int, parts: int) -> Clouds:
    try:
        import h5py
    except ImportError as error:
        raise ValueError("reading HDF5 files needs h5py: pip install h5py") from error
    names = ("data", "label", "pid") if parts else ("data", "label")
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for stem in _FILES[kind][split]:
        path = folder / f"ply_data_{stem}.h5"
        if not path.is_file():
            raise _refused(folder, kind, f"it lacks {path.name}")
        try:
            with h5py.File(path) as file:
                for name in names:
                    found[name].append(torch.from_numpy(file[name][:]))
        except (OSError, KeyError) as error:
            raise _refused(path, kind, f"damaged, or another file ({error})") from error
        points = found["data"][-1]
        try:
            require_clouds(points, 1)
        except ValueError as error:
            raise _refused(path, kind, str(error)) from error
        for name, limit in (("label", classes), ("pid", parts)):
            if name in names and not 0 <= int(found[name][-1].max()) < limit:
                largest = int(found[name][-1].max())
                raise _refused(path, kind, f"{name} reaches {largest}, not {limit - 1} at most")
    data, labels, *part = (torch.cat(found[name]) for name in names)
    return Clouds(data.float(), labels.long().flatten(), *(p.long() for p in part))


def read_modelnet40(folder: str | Path) -> tuple[Clouds, Clouds]:
    """9,840 clouds to train on and 2,468 to test on, of 40 classes.

    Raises:
        ValueError: for files that are missing or damaged, or without h5py.
    """
    folder = Path(folder).expanduser()
    train, test = (_read(folder, MODELNET40, split, 40, 0) for split in ("train", "test"))
    return train, test


def read_shapenet_part(folder: str | Path) -> tuple[Clouds, Clouds]:
    """Training and validation clouds joined, as is usual, and test clouds; 16 classes, 50 parts.

    Raises:
        ValueError: for files that are missing or damaged, or without h5py.
    """
    folder = Path(folder).expanduser()
    train, test = (_read(folder, SHAPENET_PART, split, 16, 50) for split in ("train", "test"))
    return train, test


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
