"""Shapes: a generated segmentation dataset, to train on a new machine within minutes.

A scene has a blurred background of irregular blobs and strokes. Patterned objects of two kinds are
in front of it and cover one another; further strokes cover them. Sensor noise is added last. The
kind of an object is independent of its color, pattern, size and place, so only its form and the
other objects of the scene tell the class. Every pixel has a label; there is no void border.

A scene depends only on (seed, index). The training and validation splits use disjoint indices.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from mmseg.registry import DATASETS
from numpy.random import Generator
from PIL import Image

from mmseg_ext.datasets.checked_dataset import CheckedDataset

VERSION = 1  # to be raised if the same recipe gives other pixels
OBJECT = 10  # difference between the labels of two objects of a class in `render_objects`
MARKER = "shapes.json"


@dataclass(frozen=True)
class Recipe:
    """The content of a generated folder: `train + val` scenes of `size` x `size` pixels."""

    seed: int = 0
    train: int = 640
    val: int = 128
    size: int = 128


# The distance to the border in units of the radius, negative inside; u, v point right and down.
Form = Callable[[np.ndarray, np.ndarray], np.ndarray]


FORMS: dict[str, Form] = {
    "disc": lambda u, v: np.hypot(u, v) - 1.0,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.78) - 0.27,
    "square": lambda u, v: np.maximum(np.abs(u), np.abs(v)) - 0.85,
    "triangle": lambda u, v: np.maximum(0.866 * np.abs(u) - 0.5 * v, v) - 0.6,
    "cross": lambda u, v: np.maximum(
        np.maximum(np.abs(u), np.abs(v)) - 1.05, np.minimum(np.abs(u), np.abs(v)) - 0.33
    ),
}


def _blob(rng: Generator) -> Form:
    """Return a closed contour of random harmonics, unlike the form of any class."""
    orders = np.arange(2, 6)
    amplitudes = rng.uniform(0.1, 0.3, 4) / np.sqrt(orders - 1)
    phases = rng.uniform(0, 2 * np.pi, 4)

    def form(u, v):
        waves = orders[:, None, None] * np.arctan2(v, u) + phases[:, None, None]  # (4, H, W)
        return np.hypot(u, v) - 1.0 - np.tensordot(amplitudes, np.cos(waves), 1)

    return form


def _stroke(rng: Generator) -> Form:
    """Return a long bar with round ends, bent into an arc."""
    bend, width = rng.uniform(-0.25, 0.25), rng.uniform(0.05, 0.09)

    def form(u, v):
        return np.hypot(np.maximum(np.abs(u) - 1.0, 0), v - bend * u * u) - width

    return form


class _Canvas:
    """A scene in progress: `image` (H, W, 3) float in [0, 255] and `label` (H, W)."""

    def __init__(self, size: int, rng: Generator):
        self.rng = rng
        self.y, self.x = np.mgrid[:size, :size].astype(float)
        self.image = np.empty((size, size, 3))
        self.label = np.zeros((size, size), np.uint8)
        self.image[:] = self._texture(_color(rng), self.x / size, self.y / size, patterned=False)

    def _texture(self, color: np.ndarray, u: np.ndarray, v: np.ndarray, patterned: bool):
        """Return `color` (H, W, 3) with shading and, if patterned, stripes, checks or dots.

        Both follow the coordinates u, v.
        """
        rng = self.rng
        slope = rng.uniform(-22.0, 22.0, 2)
        texture = color + np.clip(slope[0] * u + slope[1] * v, -40, 40)[..., None]
        if not patterned:
            return texture
        kind, pitch = rng.integers(3), rng.uniform(6.0, 11.0)
        if kind == 0:
            wave = np.sin(pitch * u)
        elif kind == 1:
            wave = 1.5 * np.sin(pitch * u) * np.sin(pitch * v)
        else:
            wave = 2.0 * (np.cos(pitch * u) + np.cos(pitch * v)) - 1.5
        return texture + rng.uniform(20.0, 40.0) * np.clip(3.0 * wave, -1, 1)[..., None]

    def paint(
        self, form: Form, radius: float, tilt: float = np.pi, margin: float = 0.0, label: int = 0
    ) -> None:
        """Paint `form` at a random place, rotated by at most `tilt`; objects are patterned.

        The center is at least `margin` times the size of the canvas away from its border.
        """
        size = len(self.label)
        center = self.rng.uniform(margin * size, (1 - margin) * size, 2)  # x, y
        angle, aspect = self.rng.uniform(-tilt, tilt), self.rng.uniform(0.9, 1.1)
        reach = 1.9 * radius  # of the largest form
        (left, top), (right, bottom) = np.maximum(center - reach, 0), center + reach
        window = slice(int(top), int(bottom) + 1), slice(int(left), int(right) + 1)
        dx, dy = self.x[window] - center[0], self.y[window] - center[1]
        u = (np.cos(angle) * dx + np.sin(angle) * dy) / (radius * aspect)
        v = (np.cos(angle) * dy - np.sin(angle) * dx) * aspect / radius
        distance, image = form(u, v), self.image[window]
        inside = distance < 0
        if not inside.any():
            return
        coverage = np.clip(0.5 - distance * radius, 0, 1)  # edges one pixel wide
        color = _color(self.rng, unlike=image[inside].mean(0))
        painted = self._texture(color, u, v, patterned=label > 0)
        image += coverage[..., None] * (painted - image)
        self.label[window][inside] = label

    def defocus(self, sigma: float) -> None:
        """Blur with a Gaussian; its standard deviation is `sigma` pixels."""
        offset = np.subtract.outer(self.x[0], self.x[0])
        kernel = np.exp(-0.5 * (offset / sigma) ** 2)
        kernel /= kernel.sum(1, keepdims=True)  # keeps the border as bright as the rest
        self.image = np.tensordot(kernel, self.image, 1)  # (H, H) by (H, W, 3)
        self.image = kernel @ self.image  # of each row, (W, W) by (W, 3)


def _color(rng: Generator, unlike: np.ndarray | None = None) -> np.ndarray:
    """Return a color (3,) in [30, 235] with a distance of at least 90 from `unlike`."""
    while True:
        color = rng.uniform(30.0, 235.0, 3)
        if unlike is None or np.linalg.norm(color - unlike) >= 90.0:
            return color


def render(seed: int, index: int, size: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Return scene `index` of `seed`: image (size, size, 3) uint8 RGB, label (size, size) uint8."""
    image, objects = render_objects(seed, index, size)
    return image, objects % OBJECT


def render_objects(seed: int, index: int, size: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Return `render` with object numbers: label + OBJECT * number, 0 for the background."""
    rng = np.random.default_rng([VERSION, seed, index])
    canvas = _Canvas(size, rng)
    scale = size / 128
    for _ in range(rng.integers(7, 13)):
        if rng.random() < 0.7:
            form, smallest, largest = _blob(rng), 8, 26
        else:
            form, smallest, largest = _stroke(rng), 20, 60
        canvas.paint(form, rng.uniform(smallest, largest) * scale)
    canvas.defocus(3.0 * scale)
    kinds = rng.permutation(len(FORMS))[:2]
    for number, kind in enumerate(rng.choice(kinds, rng.integers(3, 7))):
        form = list(FORMS.values())[kind]
        radius = rng.uniform(19, 29) * scale
        canvas.paint(form, radius, tilt=0.2, margin=0.08, label=kind + 1 + OBJECT * number)
    for _ in range(rng.integers(0, 3)):
        canvas.paint(_stroke(rng), rng.uniform(20, 50) * scale)
    noise = rng.normal(0.0, rng.uniform(2.0, 7.0), canvas.image.shape)
    return np.clip(canvas.image + noise, 0, 255).astype(np.uint8), canvas.label


# fmt: off
METAINFO = {
    "classes": ("background", *FORMS),
    "palette": [
        [22, 24, 32], [229, 77, 66], [247, 168, 62], [74, 156, 240], [66, 190, 121],
        [170, 104, 222],
    ],
}
# fmt: on
FIRST_INDEX = {"train": 0, "val": 1_000_000}  # disjoint, and independent of the splits' lengths


def generate(root: str | Path, recipe: Recipe) -> None:
    """Write the folder `root` in the layout of PASCAL VOC, unless it exists.

    It contains `JPEGImages/*.jpg`, `SegmentationClass/*.png` (with a palette) and
    `ImageSets/Segmentation/{train,val}.txt`. The folder is written under another name and renamed
    at the end, so a killed run leaves no partial dataset. If several processes start, one writes
    and the others wait.

    Raises:
        FileExistsError: if `root` exists with other content or another recipe.
    """
    root = Path(root)
    marker = {"version": VERSION, **asdict(recipe)}
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(root.with_name(f".{root.name}.lock")):
            if not root.exists():  # else another process was faster
                partial = root.with_name(f".{root.name}.part")
                shutil.rmtree(partial, ignore_errors=True)
                _write(partial, recipe)
                (partial / MARKER).write_text(json.dumps(marker, indent=1) + "\n")
                partial.rename(root)
    path = root / MARKER
    found = "no ShapesDataset"
    if path.is_file():
        found = json.loads(path.read_text())
    if found != marker:
        raise FileExistsError(
            f"data_root={str(root)!r}: contains {found} instead of {marker}; "
            "delete the folder or name another data_root"
        )


def _write(folder: Path, recipe: Recipe) -> None:
    """Draw the scenes of both splits into a new folder."""
    images = folder / "JPEGImages"
    labels = folder / "SegmentationClass"
    lists = folder / "ImageSets/Segmentation"
    for path in (images, labels, lists):
        path.mkdir(parents=True)
    print(f"Generating {recipe.train + recipe.val} scenes (seed {recipe.seed})", flush=True)
    palette = np.array(METAINFO["palette"], np.uint8).tobytes()
    for split, first in FIRST_INDEX.items():
        names = [f"{split}_{i:05d}" for i in range(getattr(recipe, split))]
        for index, name in enumerate(names, start=first):
            image, label = render(recipe.seed, index, recipe.size)
            Image.fromarray(image).save(images / f"{name}.jpg", quality=95, subsampling=0)
            indexed = Image.fromarray(label)
            indexed.putpalette(palette)
            indexed.save(labels / f"{name}.png")
        (lists / f"{split}.txt").write_text("\n".join(names) + "\n")


@DATASETS.register_module()
class ShapesDataset(CheckedDataset):
    """The generated scenes as a dataset of 5 classes and background, written at first use.

    Args:
        data_root: Folder of the dataset; it is generated if it does not exist.
        recipe: Fields of `Recipe` that differ from its defaults. Both splits of an experiment need
            the same.
        kwargs: Arguments of mmseg's `BaseSegDataset`; by default the training split.
    """

    METAINFO = METAINFO

    def __init__(self, data_root: str = "data/shapes", recipe: dict | None = None, **kwargs):
        self.recipe = Recipe(**(recipe or {}))
        kwargs.setdefault("ann_file", "ImageSets/Segmentation/train.txt")
        folders = dict(img_path="JPEGImages", seg_map_path="SegmentationClass")
        kwargs.setdefault("data_prefix", folders)
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> list[dict]:
        generate(self.data_root or "", self.recipe)
        return super().load_data_list()
