"""Folders of masks: images in which each class, or each object, has its own value or color.

A value is a code (`codes`). Codes become numbers: colors 0xRRGGBB if a mask is colored or palettes
disagree on an index, else gray values and indices. If there are several masks of an image, each of
one class, `class_masks` reads them.
"""

import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from mmseg_ext.datasets.nuclei import draw_labels
from mmseg_ext.errors import SHOWN, join_names
from mmseg_ext.own_dataset.annotations import class_masks
from mmseg_ext.own_dataset.annotations.annotation import (
    Annotation,
    annotations_below,
    reading,
    require_size,
)
from mmseg_ext.own_dataset.annotations.class_names import find_names
from mmseg_ext.own_dataset.annotations.codes import (
    COLOR,
    GRAY,
    NODATA,
    PALETTE,
    TWO_CLASSES,
    color_of,
    index_of,
    is_gray,
    kind_of,
    read_mask,
)
from mmseg_ext.own_dataset.annotations.index_map import (
    IndexMap,
    StoredMap,
    index_map,
)
from mmseg_ext.own_dataset.annotations.reader import Legend, Reader, legend_of_names, values_of
from mmseg_ext.own_dataset.matching import MASK_SUFFIXES
from mmseg_ext.own_dataset.selection import evenly

_NO_DATA = "nodata"
_FEW = 4  # values; fewer are no numbers of objects
_BLENDS = 3  # values that are mostly between others; fewer can be classes, such as borders
_SIDE, _AROUND = 4096, np.ones((3, 3), np.uint8)  # pixels that are compared with those around
_MASKS_LOOKED_AT = 8  # to find out whether values number objects
_OBJECT_VALUES = ("no object", "object", "border")


class Masks(Reader):
    """Masks with a gray value, palette index or color for each class, or a mask for each class."""

    suffixes = MASK_SUFFIXES
    ignored = (_NO_DATA,)
    can_have_classes = True

    @classmethod
    def find(cls, folder: Path) -> "Masks":
        """Return the masks below a folder, or of a pattern; see `keyed_files`."""
        return cls(annotations_below(folder, cls.suffixes), is_pattern="*" in str(folder))

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        if annotation.classes:
            return class_masks.read(annotation, sizes)
        with reading(annotation.path):
            found = read_mask(annotation.path)
            for path in annotation.paths[1:]:
                found = _larger(found, read_mask(path))
            require_size(found.indices.shape, sizes)
        return found

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        if any(part.annotation.classes for part in maps):
            return class_masks.describe(maps)
        codes = values_of(maps) - {NODATA}
        colored = _colors_count(codes)
        number_of = color_of if colored else index_of
        labels = {}
        for number in sorted(set(map(number_of, codes))):
            labels[number] = f"#{number:06x}" if colored else str(number)
        texts = {code: labels[number_of(code)] for code in codes}
        hint = "" if colored else _hint_at_objects(list(labels), maps)
        legend = Legend(labels, texts, _colors(texts), hint)
        legend.hint = hint or _hint_at_blends(labels, texts, maps, colored)
        paths = {path for part in maps for path in part.annotation.paths}
        if found := find_names(paths, texts):
            legend.names, legend.names_file = found.of_text, found.file
            legend.notes = [found.note] if found.note else []
            for text in filter(_is_color, found.of_text):
                legend.colors.setdefault(text, list(bytes.fromhex(text[1:])))
        if NODATA in values_of(maps):
            legend.labels[-1] = legend.texts[NODATA] = _NO_DATA
        return legend


class ObjectMasks(Reader):
    """Masks with a number or color for each object, or a mask for each object.

    The values are those of `NucleiDataset`: no object, object, and border where two are close.
    """

    suffixes = MASK_SUFFIXES
    class_names = ("background", "object", "border")

    @classmethod
    def find(cls, folder: Path) -> "ObjectMasks":
        """Return the masks below a folder, or of a pattern; see `keyed_files`."""
        return cls(annotations_below(folder, cls.suffixes), is_pattern="*" in str(folder))

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        with reading(annotation.path):
            mask = read_mask(annotation.path)
            require_size(mask.indices.shape, sizes)
            if len(annotation.paths) == 1:
                numbers = mask.indices.astype(np.uint16) + 1
                numbers[~_objects(mask)] = 0
            else:
                numbers = _objects(mask).astype(np.uint16)
                for number, path in enumerate(annotation.paths[1:], start=2):
                    numbers[_objects(read_mask(path))] = number
            return IndexMap(_OBJECT_VALUES, draw_labels(numbers))

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        return legend_of_names(_OBJECT_VALUES)


def _objects(mask: IndexMap) -> np.ndarray:
    """Return which pixels of a mask are not black, (H, W)."""
    return (index_of(np.array(mask.values)) > 0)[mask.indices]


def _larger(mask: IndexMap, other: IndexMap) -> IndexMap:
    """Return the larger code of two masks in each pixel."""
    codes = np.array(mask.values)[mask.indices]
    return index_map(np.maximum(codes, np.array(other.values)[other.indices]))


def _colors_count(codes: Collection[int]) -> bool:
    """Return whether masks have colors other than gray, or palettes disagree on an index."""
    indices = set()
    for code in codes:
        if kind_of(code) == COLOR and not is_gray(code):
            return True
        if kind_of(code) == PALETTE:
            if index_of(code) in indices:
                return True
            indices.add(index_of(code))
    return False


def _is_color(text: str) -> bool:
    return text.startswith("#")


def _colors(texts: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the RGB color of each text of these codes; none if no palette or color is there."""
    if all(kind_of(code) == GRAY or is_gray(code) for code in texts):
        return {}
    colors = {}
    # A palette's color comes last: it counts, not the black of transparent pixels.
    for code in sorted(texts, reverse=True):
        colors[texts[code]] = list(color_of(code).to_bytes(3, "big"))
    return colors


def _hint_at_objects(numbers: Sequence[int], maps: Sequence[StoredMap]) -> str:
    """Return a hint if gray values or indices seem to number objects; nothing by default."""
    if not _number_objects(maps):
        return ""
    return (
        f"the values up to {numbers[-1]} seem to number objects, because each is one region "
        "and images have different ones; then use --objects"
    )


def _hint_at_blends(
    labels: Mapping[int, str], texts: Mapping[int, str], maps: Sequence[StoredMap], colored: bool
) -> str:
    """Return a hint if values are mostly between others, as interpolation makes them at borders."""
    if len(labels) < _BLENDS + 2:
        return ""
    looked_at = evenly(maps, _MASKS_LOOKED_AT)
    pixels: Counter[str] = Counter()
    between: Counter[str] = Counter()
    for part in looked_at:
        indices = part.load()[:_SIDE, :_SIDE]
        codes = np.array(part.values)
        parts = (
            color_of(codes)[:, None] >> [16, 8, 0] & 255 if colored else index_of(codes)[:, None]
        )
        image = parts.astype(np.uint16)[indices]  # (H, W, parts)
        lower = np.atleast_3d(cv2.erode(image, _AROUND))
        higher = np.atleast_3d(cv2.dilate(image, _AROUND))
        is_between = ((lower < image) & (image < higher)).any(2)
        for counter, chosen in ((pixels, indices.ravel()), (between, indices[is_between])):
            counts = np.bincount(chosen, minlength=len(codes)).tolist()
            for value, count in zip(part.values, counts, strict=True):
                counter[texts.get(value, _NO_DATA)] += count
    blends = [text for text in labels.values() if 2 * between[text] > pixels[text]]
    if len(blends) < _BLENDS:
        return ""
    files = []
    for part in looked_at:
        if not set(blends).isdisjoint(map(texts.get, part.values)):
            files.append(str(part.annotation.path))
    todo = "export them again, or resize them with nearest neighbor"
    if {"0", "255"} <= set(labels.values()):
        todo += f"; for two classes {TWO_CLASSES}"
    elif len(blends) <= SHOWN:
        todo += f", or leave these values out: --ignore {shlex.join(blends)}"
    return (
        f"{len(blends)} of {len(labels)} values ({join_names(blends)}) are mostly between others "
        f"at borders, as in {join_names(files, 2)}; the masks look resized or smoothed: {todo}"
    )


def _number_objects(maps: Sequence[StoredMap]) -> bool:
    """Return whether values count from 1, or are in few masks, and each is one region."""
    numbers_of_maps = [set(map(index_of, part.values)) - {0} for part in maps]
    counts = list(map(len, numbers_of_maps))
    every: set[int] = set().union(*numbers_of_maps)
    several = np.flatnonzero(np.array(counts) > 1).tolist()
    images_are_equal = len(set(counts)) < 2
    if images_are_equal or len(every) < _FEW or not several:
        return False
    counted = sum(max(numbers_of_maps[i]) == counts[i] for i in several)
    if counted <= 0.9 * len(several) and sum(counts) >= 2 * len(every):
        return False
    regions = objects = 0
    for i in evenly(several, _MASKS_LOOKED_AT):
        numbers = index_of(np.array(maps[i].values)).astype(np.uint16)
        mask = numbers[maps[i].load()]  # (H, W)
        for number in numbers_of_maps[i]:
            regions += cv2.connectedComponents((mask == number).view(np.uint8))[0] - 1
            objects += 1
    return regions <= 1.2 * objects
