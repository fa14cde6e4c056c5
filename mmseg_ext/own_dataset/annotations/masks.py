"""Folders of masks: images in which each class, or each object, has its own value or color.

The pixels of a mask file are read as codes: integers that keep all a pixel can mean. A code is
`kind << 40 | index << 24 | color`: a gray value 7 is 7 << 24 | 0x070707, the palette index 2 of red
is 1 << 40 | 2 << 24 | 0xFF0000, and red itself is 2 << 40 | 255 << 24 | 0xFF0000. After all masks
are read, codes become numbers: colors 0xRRGGBB if a mask is colored or palettes disagree on an
index, else gray values and indices. The index of a color is its largest part, so 0 is black, as the
index 0 of gray values and of most palettes.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from mmseg_ext.errors import join_names
from mmseg_ext.images.files import read
from mmseg_ext.images.values import Photo, is_tiff
from mmseg_ext.own_dataset.annotations.class_names import find_names
from mmseg_ext.own_dataset.annotations.reader import (
    BACKGROUND,
    Annotation,
    IndexMap,
    Legend,
    Reader,
    StoredMap,
    legend_of_names,
    plain_name,
    reading,
    require_size,
    values_of,
)
from mmseg_ext.own_dataset.item import MASK_SUFFIXES, evenly, keyed_files

PALETTE, COLOR = 1, 2  # kinds of codes; gray is 0
NODATA = 3 << 40  # the code of pixels that a GeoTIFF declares to be without data
_BLACK = COLOR << 40
_BOTH_BLACK = (
    "a mask has transparent pixels, and others of 0 or black, which are one class; if they are "
    "two, save it without transparency, and black in a color"
)
_RGB = np.array([0x10000, 0x100, 1])
_FEW = 4  # values; fewer are no numbers of objects
_MANY = 10  # values; so many that number objects are no classes, unless these are named
_BLENDS = 3  # values; fewer can be classes at borders
_MOST_SHOWN = 20  # classes; so many of blends are no table that a user can read
_SIDE, _AROUND = 4096, np.ones((3, 3), np.uint8)  # of a mask's part, and of a neighborhood
_MASKS_LOOKED_AT, _VALUES_LOOKED_AT = 8, 50  # of a mask, to find out whether they number objects
_CERTAIN, _PERHAPS = "certain", "perhaps"
_RESIZED = "a mask of another size than its photo, in the same proportions, was resized to it"


class Masks(Reader):
    """Masks with a gray value, palette index or color for each class or for each object.

    With `objects` an image can also have a mask for each object.
    """

    suffixes = MASK_SUFFIXES
    ignored = ("nodata",)
    can_have_classes = True
    has_background = False

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
        # Colors count if a mask has others than gray, or if palettes disagree on an index.
        of_palettes = [index_of(code) for code in codes if code >> 40 == PALETTE]
        colored = len(set(of_palettes)) < len(of_palettes)
        grays = [code for code in codes if color_of(code) % 0x10101 == 0]
        colored = colored or any(code >> 40 == COLOR for code in codes.difference(grays))
        number_of = color_of if colored else index_of
        labels = {}
        for number in sorted(set(map(number_of, codes))):
            labels[number] = f"#{number:06x}" if colored else str(number)
        texts = {code: labels[number_of(code)] for code in codes}
        masks = {path for part in maps for path in part.annotation.paths}
        names, notes = find_names(masks, texts)
        # A palette's color comes last: it counts, not the black of transparent pixels.
        colors = {}
        for code in sorted(codes, reverse=True) if len(grays) < len(codes) else ():
            colors[texts[code]] = f"#{color_of(code):06x}"
        for text in names:  # also of classes that no mask has
            if text.startswith("#"):
                colors.setdefault(text, text)
        legend = Legend(labels, texts, colors, notes=notes, names=names)
        _add_hint(legend, maps, number_of)
        if NODATA in every:
            labels[-1] = texts[NODATA] = self.ignored[0]
        return legend


class ClassMasks(Reader):
    """A mask of an image for each class; where they overlap, the last class counts."""

    suffixes = MASK_SUFFIXES
    has_background = False

    @classmethod
    def find(cls, source: Mapping[str, str | Path]) -> "ClassMasks":
        """Return the masks of each class, of a folder or a pattern; see `keyed_files`.

        Raises:
            ValueError: also if there is no mask of a class.
        """
        annotations = []
        for name, of_class in source.items():
            found = keyed_files(Path(of_class), cls.suffixes)
            if not found:
                raise ValueError(f"{of_class}: no mask of {name}; save each as {cls.suffixes}")
            annotations += [
                Annotation(key, (path,), classes=(plain_name(name),)) for path, key in found.items()
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


def index_of(code: Any) -> Any:
    """Return the gray value, the index or the largest part of a color."""
    return code >> 24 & 0xFFFF


def color_of(code: Any) -> Any:
    """Return the color 0xRRGGBB."""
    return code & 0xFFFFFF


def read_mask(path: Path, binary: bool = False) -> IndexMap:
    """Return a mask file as an index map whose values are codes; one can be there twice.

    With `binary` the brighter half of the values becomes white, and the others black.

    Raises:
        UnreadableFileError: if the file does not decode.
        ValueError: if it is not a mask.
    """
    data = path.read_bytes()
    if data.startswith(b"\xff\xd8") and not binary:
        raise ValueError("JPEG changes a mask; export PNG, or if all are black and white, --binary")
    pixels = read(data, str(path), indices=not binary)
    if is_tiff(data):
        pixels = pixels.upright()
    missing = np.zeros(pixels.values.shape[:2], bool)
    if pixels.missing:  # many programs declare 0, which is mostly the background
        missing = pixels.without_data()
        pixels = replace(pixels, values=np.where(missing[..., None], 0, pixels.values))
    values = _whole_numbers(pixels)
    transparent = (pixels.values[..., list(pixels.alpha)] == 0).any(2)
    if binary:
        is_white = values.max(2, keepdims=True) > np.iinfo(values.dtype).max // 2
        values = np.where(is_white, np.uint8(255), np.uint8(0))
    if values.shape[2] == 1:
        found = index_map(values[..., 0])
        own = np.array(found.values)
        codes = own << 24 | own.clip(0, 255) * 0x10101
        if pixels.palette is not None:  # (N, 4) RGBA
            colors = pixels.palette[own]
            codes = PALETTE << 40 | own << 24 | colors[:, :3] @ _RGB
            transparent |= (colors[:, 3] == 0)[found.indices]
    else:
        if values.max() > 255:  # of 16 bits, which mostly repeat 8
            if (values % 257).any():
                raise ValueError("colors of 16 bits; save them with 8 bits")
            values = values // 257
        red, green, blue = np.moveaxis(values.astype(np.int32), 2, 0)
        found = index_map(red << 16 | green << 8 | blue)
        own = np.array(found.values)
        largest = np.maximum.reduce([own >> 16, own >> 8 & 255, own & 255])
        codes = COLOR << 40 | largest << 24 | own
    found.values = codes.tolist()
    notes = [f"a mask {note}"] if (note := pixels.frames_note()) else []
    if (transparent | missing).any():
        codes = np.array(found.values)[found.indices]
        if transparent.any() and (index_of(codes[~transparent & ~missing]) == 0).any():
            notes.append(_BOTH_BLACK)
        codes[transparent] = _BLACK  # an eraser leaves any color
        codes[missing] = NODATA
        found = index_map(codes)
    found.notes = notes
    return found


def _whole_numbers(pixels: Photo) -> np.ndarray:
    """Return the values without alpha, (H, W, 1 or 3), uint8 or uint16."""
    values = pixels.bands()
    if values.dtype == bool:
        values = np.where(values, np.uint8(255), np.uint8(0))  # white is 255 in files of 8 bits
    if values.shape[2] not in (1, 3):
        raise ValueError(f"{values.shape[2]} bands; a mask has a value or a color in each pixel")
    if values.dtype in (np.uint8, np.uint16):
        return values
    with np.errstate(invalid="ignore"):  # NaN, which differs from its integer
        numbers = values.astype(np.int64)
    if (numbers != values).any() or numbers.min() < 0 or numbers.max() > 0xFFFF:
        found = f"{values.dtype} values from {np.nanmin(values)} to {np.nanmax(values)}"
        if np.isnan(values).any():
            raise ValueError(f"{found}, and NaN; declare NaN as no data, or save a number for it")
        raise ValueError(f"{found}; save whole numbers of 0 to 65535")
    return numbers.astype(np.uint16)


def index_map(values: np.ndarray) -> IndexMap:
    """Return the index map of an array of integers (H, W), with ascending values."""
    if values.dtype.itemsize <= 2:  # a table is faster than a search
        present = np.flatnonzero(np.bincount(values.ravel()))
        table = np.zeros(present[-1] + 1, np.min_scalar_type(len(present)))
        table[present] = np.arange(len(present))
        return IndexMap(present.tolist(), table[values])
    # np.unique sorts all pixels.
    present = torch.from_numpy(values).unique_consecutive().unique().numpy()
    return IndexMap(present.tolist(), np.searchsorted(present, values))


def at_image_size(found: IndexMap, sizes: Sequence[tuple[int, int]]) -> IndexMap:
    """Return an index map at one of the sizes (height, width) that its image may have.

    A mask in the proportions of the image is resized with nearest neighbor: some factor makes both
    sides of the image, rounded up or down, equal to the mask's. A single side that differs is a
    part that was cut off.

    Raises:
        ValueError: if the proportions differ.
    """
    height, width = found.indices.shape
    for side, other in sizes if (height, width) not in sizes else ():
        is_cut = side == height or other == width
        if not is_cut and abs(height * other - width * side) < side + other:
            indices = found.indices.astype(np.int32)
            indices = cv2.resize(indices, (other, side), interpolation=cv2.INTER_NEAREST_EXACT)
            return IndexMap(found.values, indices, [*found.notes, _RESIZED])
    require_size((height, width), sizes)
    return found


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
    """Return a hint if values are mostly between others at borders, or single pixels of noise."""
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
    values can do if they are above 255, in few masks, the same in all masks, or more than twenty.
    """
    numbers_of_maps = [set(map(number_of, part.values)) - {0} for part in maps]
    counts = np.array(list(map(len, numbers_of_maps)))
    every: set[int] = set().union(*numbers_of_maps)
    several = np.flatnonzero(counts > 1).tolist()
    if len(every) < _FEW or not several:
        return ""
    is_gray, differ = number_of is index_of, len(set(counts)) > 1
    from_one = sum(max(numbers_of_maps[i]) == counts[i] for i in several) > 0.9 * len(several)
    in_few = counts.sum() < 2 * len(every)
    in_all = counts.sum() == len(maps) * len(every)
    are_counted = is_gray and differ and (from_one or in_few)
    # Else their number is a reason: slices of a stack show parts of all objects.
    is_likely = in_few or in_all
    can_be_many = len(every) >= _MANY and (is_likely or len(every) > _MOST_SHOWN)
    regions = []  # of each value of some masks
    looked_at = evenly(several, _MASKS_LOOKED_AT if are_counted or can_be_many else 0)
    for part in (maps[i] for i in looked_at):
        numbers = number_of(np.array(part.values)).astype(np.int32)
        mask = numbers[part.load()]  # (H, W)
        for number in evenly(sorted({*numbers.tolist()} - {0}), _VALUES_LOOKED_AT):
            regions.append(cv2.connectedComponents((mask == number).view(np.uint8))[0] - 1)
    if are_counted and np.mean(regions) <= 1.2:
        return _CERTAIN
    if is_gray and max(every) > 255:  # as 26001 is a car
        return _PERHAPS
    least = 0.6 if is_likely else 0.9
    return _PERHAPS if can_be_many and np.mean(np.equal(regions, 1)) > least else ""
