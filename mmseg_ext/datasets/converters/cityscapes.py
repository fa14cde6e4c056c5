"""Label maps of the 19 evaluated classes of Cityscapes (`labelTrainIds`).

Cordts et al., The Cityscapes dataset, CVPR 2016; classes and ids as in mcordts/cityscapesScripts,
`helpers/labels.py`. Where cityscapesscripts is installed it draws the maps from the polygons; else
they come from the `labelIds` maps of the archive, which it has drawn from the same polygons in the
same order, by the table of ids below.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from mmseg_ext.datasets.converters.conversion import (
    in_parallel,
    require_counts,
    verify,
    write_whole,
)
from mmseg_ext.datasets.files import read_bytes
from mmseg_ext.datasets.labels import LabelRule, decode_label
from mmseg_ext.errors import ConversionError, LabelError, UnreadableFileError

PUBLISHED = {"train": 2975, "val": 500, "test": 1525}
CLASSES = 19
IGNORED = 255
# Id of each class in train id order: road, sidewalk, building, wall, fence, pole, traffic light,
# traffic sign, vegetation, terrain, sky, person, rider, car, truck, bus, train, motorcycle, bicycle
IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
LARGEST_ID = 33


def convert_cityscapes(root: Path, workers: int = 0, allow_partial: bool = False) -> dict[str, int]:
    """Write `*_gtFine_labelTrainIds.png` beside the annotations of every image below `root`.

    Returns:
        Number of images of each split.

    Raises:
        ConversionError: if the numbers are not the published ones (unless `allow_partial`), an
            image has no annotation, or a pair is broken.
    """
    if not (root / "leftImg8bit").is_dir() or not (root / "gtFine").is_dir():
        raise ConversionError(
            f"{root} needs the folders leftImg8bit and gtFine, of leftImg8bit_trainvaltest.zip "
            "and gtFine_trainvaltest.zip"
        )
    pairs = {split: _pairs(root, split) for split in PUBLISHED}
    counts = {split: len(found) for split, found in pairs.items() if found}
    require_counts(counts, PUBLISHED, allow_partial)
    targets = [mask for found in pairs.values() for _, mask in found]
    draw = _drawing()
    missing = [path for path in targets if not path.exists()]
    in_parallel(partial(make_label_map, draw=draw), missing, workers, "drawing label maps")
    for split in counts:
        verify(split, pairs[split], LabelRule(CLASSES), workers, all_ignored=split == "test")
    return counts


def _pairs(root: Path, split: str) -> list[tuple[Path, Path]]:
    suffix = "_leftImg8bit.png"
    images = sorted((root / "leftImg8bit" / split).glob(f"*/*{suffix}"))
    folder = root / "gtFine" / split
    return [
        (i, folder / i.parent.name / i.name.replace(suffix, "_gtFine_labelTrainIds.png"))
        for i in images
    ]


def _drawing() -> Callable[[str, str, str], None] | None:
    """cityscapesscripts' function from polygons to label maps, where it is installed."""
    try:
        from cityscapesscripts.preparation.json2labelImg import json2labelImg
    except ImportError:
        return None
    return json2labelImg


def make_label_map(path: Path, draw: Callable[[str, str, str], None] | None) -> None:
    """Write the label map `path`, `*_gtFine_labelTrainIds.png`, from the files beside it.

    `draw`, cityscapesscripts' `json2labelImg`, makes it from the polygons; without it, or without
    polygons, it is made from the map of ids.

    Raises:
        ConversionError: if neither file is there, or the one that is used is broken.
    """
    stem = path.name.removesuffix("labelTrainIds.png")
    polygons, ids = (path.with_name(stem + end) for end in ("polygons.json", "labelIds.png"))
    if draw is not None and polygons.exists():
        write_whole(path, partial(_draw, draw, polygons))
    elif ids.exists():
        label = train_ids(ids)
        write_whole(path, lambda partial_path: cv2.imwrite(str(partial_path), label))
    else:
        cure = "" if not polygons.exists() else "; polygons need: pip install cityscapesscripts"
        raise ConversionError(f"{ids}: there is no such file{cure}")


def _draw(draw: Callable[[str, str, str], None], polygons: Path, target: Path) -> None:
    try:
        draw(str(polygons), str(target), "trainIds")
    except (SystemExit, ValueError, KeyError, TypeError) as error:  # it exits on unknown labels
        raise ConversionError(f"{polygons}: cityscapesscripts cannot draw it ({error})") from error


def train_ids(path: Path) -> np.ndarray:
    """Label map (H, W) uint8 of train ids for the map of ids at `path`.

    Raises:
        ConversionError: if it does not decode or holds an id above 33.
    """
    try:
        ids = decode_label(read_bytes(str(path)), str(path))
    except (UnreadableFileError, LabelError) as error:
        raise ConversionError(str(error)) from error
    if ids.max() > LARGEST_ID:
        raise ConversionError(f"{path}: ids up to {ids.max()}, expected 0 to {LARGEST_ID}")
    table = np.full(256, IGNORED, np.uint8)
    table[list(IDS)] = np.arange(CLASSES)
    return table[ids]
