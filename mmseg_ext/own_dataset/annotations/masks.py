"""Folders of masks: images in which each class, or each object, has its own value or color.

A value is a code (`codes`). Codes become numbers: colors 0xRRGGBB if a mask is colored or palettes
disagree on an index, else gray values and indices.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from mmseg_ext.errors import join_names
from mmseg_ext.own_dataset.annotations.class_names import find_names
from mmseg_ext.own_dataset.annotations.codes import (
    COLOR,
    NODATA,
    PALETTE,
    color_of,
    index_of,
    is_gray,
    kind_of,
    read_mask,
)
from mmseg_ext.own_dataset.annotations.reader import (
    BACKGROUND,
    Annotation,
    IndexMap,
    Legend,
    Reader,
    StoredMap,
    at_image_size,
    index_map,
    legend_of_names,
    reading,
    values_of,
)
from mmseg_ext.own_dataset.item import MASK_SUFFIXES, evenly, keyed_files

_FEW = 4  # values; fewer are no numbers of objects
_MANY = 10  # values; so many that number objects are no classes, unless these are named
_BLENDS = 3  # values; fewer can be classes at borders
_MOST_SHOWN = 20  # classes; so many of blends are no table that a user can read
_SIDE, _AROUND = 4096, np.ones((3, 3), np.uint8)  # of a mask's part, and of a neighborhood
_MASKS_LOOKED_AT, _VALUES_LOOKED_AT = 8, 50  # of a mask, to find out whether they number objects
_CERTAIN, _PERHAPS = "certain", "perhaps"


@dataclass
class Masks(Reader):
    """Masks with a gray value, palette index or color for each class or for each object.

    With `objects` an image can also have a mask for each object.
    """

    suffixes = MASK_SUFFIXES
    ignored = ("nodata",)
    can_have_classes = True
    has_background = False

    binary: bool = False  # see `read_mask`

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        paths, notes, codes = annotation.paths, [], np.zeros(1, int)
        with reading(annotation.path):
            for number, path in enumerate(paths, start=1):
                found = at_image_size(read_mask(path, self.binary), sizes)
                notes += found.notes
                if len(paths) > 1:  # parts, of which the larger code counts, or an object each
                    own = np.array(found.values)[found.indices]
                    if self.objects:
                        own = np.where(index_of(own) > 0, number << 24, 0)
                    codes = np.maximum(codes, own)
            if len(paths) > 1:
                found = index_map(codes)
        found.notes = list(dict.fromkeys(notes))
        if self.objects:
            special = {code: BACKGROUND for code in found.values if not index_of(code)}
            if NODATA in special:
                special[NODATA] = self.ignored[0]
            found.values = [special.get(code, code) for code in found.values]
        return found

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        every = values_of(maps)
        codes = every - {NODATA}
        colored = _colors_count(codes)
        number_of = color_of if colored else index_of
        labels = {}
        for number in sorted(set(map(number_of, codes))):
            labels[number] = f"#{number:06x}" if colored else str(number)
        texts = {code: labels[number_of(code)] for code in codes}
        masks = {path for part in maps for path in part.annotation.paths}
        names, notes = find_names(masks, texts)
        colors = _colors(texts)
        for text in names:  # also of classes that no mask has
            if text.startswith("#"):
                colors.setdefault(text, text)
        legend = Legend(labels, texts, colors, notes=notes, names=names)
        _add_hint(legend, maps, number_of)
        if NODATA in every:
            labels[-1] = texts[NODATA] = self.ignored[0]
        return legend


@dataclass
class ClassMasks(Reader):
    """A mask of an image for each class; where they overlap, the last class counts."""

    suffixes = MASK_SUFFIXES
    has_background = False

    binary: bool = False  # see `read_mask`

    @classmethod
    def find(cls, sources: Mapping[str, Path]) -> "ClassMasks":
        """Return the masks of each class, of a folder or a pattern; see `keyed_files`.

        Raises:
            ValueError: also if there is no mask of a class.
        """
        annotations = []
        for name, source in sources.items():
            found = keyed_files(source, cls.suffixes)
            if not found:
                raise ValueError(f"{source}: no mask of {name}; save each as {cls.suffixes}")
            annotations += [
                Annotation(key, (path,), classes=(name,)) for path, key in found.items()
            ]
        return cls(annotations, is_pattern=True)

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        values, notes = list(dict.fromkeys([BACKGROUND, *annotation.classes])), []
        indices = np.empty(0)
        for path, name in zip(annotation.paths, annotation.classes, strict=True):
            with reading(path):
                mask = read_mask(path, self.binary)
                is_class = index_of(np.array(mask.values)) > 0  # of each value
                if is_class.sum() > 1:
                    raise ValueError(
                        f"the mask of one class has {is_class.sum()} values other than 0; if its "
                        "edges are smooth, add --binary"
                    )
                mask = at_image_size(mask, sizes)
            if not indices.size:
                indices = np.zeros(mask.indices.shape, np.min_scalar_type(len(values)))
                sizes = [mask.indices.shape]  # upright or turned, as the first one
            indices[is_class[mask.indices]] = values.index(name)
            notes += mask.notes
        return IndexMap(values, indices, notes)

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        names = (name for annotation in self.annotations for name in annotation.classes)
        return legend_of_names(list(dict.fromkeys([BACKGROUND, *names])))


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


def _colors(texts: Mapping[int, str]) -> dict[str, str]:
    """Return the color #rrggbb of each text of these codes; none if all are gray."""
    if all(map(is_gray, texts)):
        return {}
    colors = {}
    # A palette's color comes last: it counts, not the black of transparent pixels.
    for code in sorted(texts, reverse=True):
        colors[texts[code]] = f"#{color_of(code):06x}"
    return colors


def _add_hint(legend: Legend, maps: Sequence[StoredMap], number_of: Callable) -> None:
    """Add what values can be instead of classes: numbers of objects, or blends of other values."""
    count = len(legend.labels)
    objects = _count_objects(maps, number_of)
    if objects == _CERTAIN:
        text = (
            f"the values up to {max(legend.labels)} seem to number objects, because each is one "
            "region and images have different ones; use --objects"
        )
        if count < _MANY:
            legend.hint = text
        else:
            path = maps[0].annotation.path
            legend.problem = f"{path}: {text}, or name the classes with --classes"
        return
    legend.hint = _hint_at_blends(legend, maps, number_of)
    if legend.hint and count > _MOST_SHOWN:
        legend.problem = f"{maps[0].annotation.path}: {legend.hint}"
    if objects == _PERHAPS and not legend.hint and not legend.names:
        legend.hint = (
            f"the {count} values are perhaps numbers or colors of objects, because most are one "
            "region in a mask, or above 255; if they are, use --objects"
        )


def _hint_at_blends(legend: Legend, maps: Sequence[StoredMap], number_of: Callable) -> str:
    """Return a hint if values are mostly between others at borders, or alone, as noise of JPEG."""
    labels, texts = legend.labels, legend.texts
    if len(labels) < _BLENDS + 2:
        return ""
    pixels: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))  # all, and blends of others
    files: dict[str, Path] = {}  # a mask with each text
    for part in evenly(maps, _MASKS_LOOKED_AT):
        indices = part.load()[:_SIDE, :_SIDE]
        mask = number_of(np.array(part.values)).astype(np.float32)[indices]
        is_between = (cv2.erode(mask, _AROUND) < mask) & (mask < cv2.dilate(mask, _AROUND))
        is_alone = np.ones(mask.shape, bool)  # no neighbor in its row or column is equal
        for here, there in ((is_alone, mask), (is_alone.T, mask.T)):
            is_equal = there[1:] == there[:-1]
            here[1:] &= ~is_equal
            here[:-1] &= ~is_equal
        every = np.bincount(indices.ravel(), minlength=len(part.values))
        blends = np.bincount(indices[is_between | is_alone], minlength=len(part.values))
        for value, *counts in zip(part.values, every, blends, strict=True):
            text = texts.get(value, "")
            pixels[text] += counts
            files.setdefault(text, part.annotation.path)
    blends = [text for text in labels.values() if 2 * pixels[text][1] > pixels[text][0]]
    if len(blends) < _BLENDS:
        return ""
    paths = list(dict.fromkeys(str(files[text]) for text in blends))
    todo = "export them again, resize them with nearest neighbor, or --ignore these values"
    if max(map(index_of, texts)) > 127:
        todo = f"for two classes start a new project with --binary; else {todo}"
    return (
        f"the masks look resized, smoothed or saved as JPEG, because {len(blends)} of "
        f"{len(labels)} values ({join_names(blends)}) are mostly between others at borders, or "
        f"single pixels, as in {join_names(paths, 3)}; {todo}"
    )


def _count_objects(maps: Sequence[StoredMap], number_of: Callable) -> str:
    """Return whether values number objects, each in one region: `_CERTAIN`, `_PERHAPS` or nothing.

    Gray values do if they count from 1, or are in few masks, and masks have different ones. Many
    values can do if they are above 255, in few masks, or the same in all masks.
    """
    numbers_of_maps = [set(map(number_of, part.values)) - {0} for part in maps]
    counts = np.array(list(map(len, numbers_of_maps)))
    every: set[int] = set().union(*numbers_of_maps)
    several = np.flatnonzero(counts > 1).tolist()
    if len(every) < _FEW or not several:
        return ""
    some = [maps[i] for i in several]
    is_gray, differ = number_of is index_of, len(set(counts)) > 1
    from_one = sum(max(numbers_of_maps[i]) == counts[i] for i in several) > 0.9 * len(several)
    in_few = counts.sum() < 2 * len(every)
    in_all = counts.sum() == len(maps) * len(every)
    are_counted = differ and (from_one or in_few)
    if is_gray and are_counted and _count_regions(some, number_of).mean() <= 1.2:
        return _CERTAIN
    if is_gray and max(every) > 255:  # as 26001 is a car
        return _PERHAPS
    if len(every) < _MANY:
        return ""
    if (in_few or in_all) and (_count_regions(some, number_of) == 1).mean() > 0.6:
        return _PERHAPS
    return ""


def _count_regions(maps: Sequence[StoredMap], number_of: Callable) -> np.ndarray:
    """Return the number of regions of each value but 0 in some masks, (N,)."""
    regions = []
    for part in evenly(maps, _MASKS_LOOKED_AT):
        numbers = number_of(np.array(part.values)).astype(np.int32)
        mask = numbers[part.load()]  # (H, W)
        for number in evenly(sorted({*numbers.tolist()} - {0}), _VALUES_LOOKED_AT):
            regions.append(cv2.connectedComponents((mask == number).view(np.uint8))[0] - 1)
    return np.array(regions)
