"""Datasets with their networks and schedules.

PCT published no training code. ModelNet40 follows PCT_Pytorch, which matches PCT's description:
batches of 32, 250 epochs, SGD from 0.01 with a cosine schedule, translation, anisotropic scaling
and dropped points. (Here the learning rate changes with every batch, there with every epoch.) PCT's
notes on part segmentation refer to DGCNN's code, so ShapeNet-part uses its batches of 32 and 200
epochs; the rest is as for ModelNet40, without dropped points. `solids` is ours and trains in five
minutes on two cores.
"""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from projects.eat.data import (
    MODELNET40,
    SHAPENET_PART,
    SHAPENET_PARTS,
    Clouds,
    read_modelnet40,
    read_shapenet_part,
)
from projects.eat.model import Classifier, PartSegmenter
from projects.eat.solids import PARTS, SOLIDS, make_solids


@dataclass(frozen=True)
class Recipe:
    """Network and schedule for a dataset."""

    points: int  # of a cloud that a network sees
    epochs: int
    network: dict  # its arguments
    parts: list[list[int]] | None = None  # of each class, for part segmentation
    rates: tuple[float, float] = (0.01, 1e-4)  # at which a cosine starts and ends
    adam: bool = False  # or SGD with momentum and weight decay
    batch: int = 32
    drop: float = 0.0  # the largest share of points that a training cloud loses
    smoothing: float = 0.0  # of the labels
    folder: str | None = None  # without one the data is made by code

    def build(self, attention: str) -> nn.Module:
        kind = Classifier if self.parts is None else PartSegmenter
        return kind(attention=attention, **self.network)


# PCT_Pytorch gives 0.2 to the other 39 classes; PyTorch's smoothing shares it among all 40.
_SMOOTHING = 0.2 * 40 / 39
_SMALL = dict(num_classes=len(SOLIDS), width=32)
RECIPES = {
    "solids": Recipe(
        256,
        6,
        dict(**_SMALL, samples=(128, 64), neighbours=8),
        adam=True,
        rates=(2e-3, 0.0),
        drop=0.25,
    ),
    "solid-parts": Recipe(
        256, 3, dict(**_SMALL, num_parts=PARTS[-1][-1] + 1), PARTS, adam=True, rates=(2e-3, 0.0)
    ),
    "modelnet40": Recipe(
        1024, 250, dict(num_classes=40), smoothing=_SMOOTHING, drop=0.875, folder=MODELNET40
    ),
    "shapenet-part": Recipe(
        2048, 200, dict(num_classes=16, num_parts=50), SHAPENET_PARTS, folder=SHAPENET_PART
    ),
}


def read(data: str, folder: str | Path | None) -> tuple[Clouds, Clouds]:
    """Return the training and test clouds of a dataset.

    Raises:
        ValueError: if the folder is not given or incomplete, or if h5py is missing.
    """
    recipe = RECIPES[data]
    if recipe.folder is None:
        train, test = (make_solids(n, recipe.points, i) for i, n in enumerate((2048, 800)))
        return Clouds(*train), Clouds(*test)
    if folder is None:
        raise ValueError(f"--data {data}: needs {recipe.folder}; add --folder DIR")
    try:
        return (read_modelnet40 if data == "modelnet40" else read_shapenet_part)(folder)
    except (ImportError, OSError, KeyError) as error:
        raise ValueError(f"{folder}: not a readable {recipe.folder}: {error}") from error
