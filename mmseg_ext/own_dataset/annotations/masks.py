"""Masks in which each class, or each object, has its own value, palette index or color."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

from mmseg_ext.datasets.nuclei import draw_labels
from mmseg_ext.errors import LabelError
from mmseg_ext.images.values import is_tiff, read_pixels
from mmseg_ext.own_dataset.matching import MASK_SUFFIXES, keyed_files
from mmseg_ext.terminal import progress

BACKGROUND = "background"
_PALETTE, _COLOR = 1, 2
_RGB = np.array([0x10000, 0x100, 1])
_FEW = 4  # values; fewer are no numbers of objects
_SMOOTH = 40  # values from 0 to 255; fewer are perhaps classes, such as those of Cityscapes
MASKS_READ = 8  # masks, to find out what they are
_TWO_CLASSES = "run: mkdir NEW; magick mogrify -path NEW -format png -threshold 50% MASKS/*"


class Annotation(NamedTuple):
    """An annotation of an image."""

    path: Path
    name: str = ""  # of the image, if the file has several
    content: Any = None  # the image's part of the file, or the paths of its masks by class
    objects: tuple[Path, ...] = ()  # more masks of the same image


@contextlib.contextmanager
def reading(annotation: Annotation) -> Iterator[None]:
    """Raise any error as `LabelError` with the file's path; any bytes can be in the file."""
    try:
        yield
    except Exception as error:
        where = f"{annotation.path}: {annotation.name}".rstrip(": ")
        reason = error if isinstance(error, ValueError) else repr(error)
        raise LabelError(f"{where}: cannot be read ({reason})") from error


def require_size(size: tuple[int, ...], sizes: Sequence[tuple[int, int]]) -> None:
    if size not in sizes:
        found, image = (f"{width}x{height}" for height, width in (size, sizes[0]))
        raise ValueError(f"it is {found}, but its image is {image}")


class Masks:
    """Images with one gray value, palette index or color per class.

    Values are indices, or colors 0xRRGGBB if a mask is colored or palettes disagree on an index.
    All readers have these attributes and methods.
    """

    colored = False
    suffixes: Sequence[str] = MASK_SUFFIXES
    names: Sequence[str] | None = None  # of the classes, if the user gives none
    ignored: Sequence[str] = ()  # labels that are ignored in any case
    hint = ""  # what else the masks could be, or why they have only one value
    notes: Sequence[str] = ()  # on what `prepare` found
    is_pattern = False

    def __init__(self, folder: Path):
        files = keyed_files(folder, self.suffixes)
        self.is_pattern = "*" in str(folder)
        self.files = [(key, Annotation(path)) for path, key in files.items()]
        self.labels: dict[int, str] = {}  # the text of each value, in the order of the classes
        self.colors: dict[str, list[int]] = {}  # RGB of each text, if the masks have colors

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        """Set `labels` to the values in `annotations`, and return the labels of each.

        Raises:
            LabelError: if none can be read.
        """
        found = self._read_each(annotations, lambda a: {*different_codes(_codes(a)).tolist()})
        codes = set().union(*found)
        palette = {code for code in codes if code >> 40 == _PALETTE}
        self.colored |= len({code >> 24 for code in palette}) < len(palette)
        self.colored |= any(c >> 40 == _COLOR and (c & 0xFFFFFF) % 0x10101 for c in codes)
        values = sorted({self._value(code) for code in codes})
        self.labels = {v: f"#{v:06x}" if self.colored else str(v) for v in values}
        text = {code: self.labels[self._value(code)] for code in codes}
        if any(code >> 40 and (code & 0xFFFFFF) % 0x10101 for code in codes):
            # A palette's color comes last: it counts, not the black of transparent pixels.
            last = sorted(codes, reverse=True)
            self.colors = {text[c]: list((c & 0xFFFFFF).to_bytes(3, "big")) for c in last}
        if not self.colored and self._number_objects(found, annotations):
            self.hint = (
                f"the values up to {values[-1]} seem to number objects, because each is one region "
                "and images have different ones; then use --objects"
            )
        elif not self.colored and len(values) > _SMOOTH and {0, 255} <= {*values}:
            self.hint = f"if {len(values)} values are two classes with smooth edges, {_TWO_CLASSES}"
        return [{text[code] for code in part} for part in found]

    def _read_each(self, annotations: Sequence[Annotation], read: Callable) -> list[set]:
        """Return the sets that `read` finds, empty ones for annotations that cannot be read."""
        found, problems = [], []
        for annotation in progress(annotations, "reading", len(annotations)):
            try:
                found.append(read(annotation))
            except LabelError as error:  # `read` of the class raises it again
                problems.append(error)
                found.append(set())
        if problems and len(problems) == len(found):
            raise problems[0]
        if problems and len(set().union(*found)) < 2:
            self.hint = str(problems[0])
        return found

    def _number_objects(self, found: Sequence[set], annotations: Sequence[Annotation]) -> bool:
        """Return whether values count from 1, or are in few masks, and each is one region."""
        values = [{self._value(code) for code in part} - {0} for part in found]
        several, every = [i for i, own in enumerate(values) if len(own) > 1], set().union(*values)
        if len({*map(len, values)}) < 2 or len(every) < _FEW or not several:
            return False
        counted = sum(max(values[i]) == len(values[i]) for i in several) > 0.9 * len(several)
        regions = numbers = 0
        for i in several[:: -(-len(several) // MASKS_READ)]:
            mask = self._value(_codes(annotations[i])).astype(np.uint16)
            parts = [cv2.connectedComponents((mask == v).view(np.uint8))[0] - 1 for v in values[i]]
            regions, numbers = regions + sum(parts), numbers + len(parts)
        return (counted or sum(map(len, values)) < 2 * len(every)) and regions <= 1.2 * numbers

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        """Return the values (H, W), or raise `LabelError`; `sizes` are the possible sizes."""
        values = self._value(_codes(annotation))
        with reading(annotation):
            require_size(values.shape, sizes)
        return values

    def _value(self, codes):
        return codes & 0xFFFFFF if self.colored else index_of(codes)


def _codes(annotation: Annotation) -> np.ndarray:
    """Return the kind, index and color of each pixel: (H, W) kind << 40 | index << 24 | color.

    The index of a color is its largest part. Of several masks of objects, the largest value counts.
    """
    with reading(annotation):
        return functools.reduce(np.maximum, map(codes_of, [annotation.path, *annotation.objects]))


def different_codes(codes: np.ndarray) -> np.ndarray:
    """Return the different codes; np.unique sorts all pixels."""
    return torch.from_numpy(codes).unique_consecutive().unique().numpy()


def codes_of(path: Path) -> np.ndarray:
    data = path.read_bytes()
    if data.startswith(b"\xff\xd8"):
        raise ValueError(f"JPEG changes a mask; export PNG, or for two classes {_TWO_CLASSES}")
    pixels = read_pixels(data, indices=True)
    pixels = pixels.upright() if is_tiff(data) else pixels
    values, alpha, palette = pixels.values, pixels.alpha, pixels.palette
    if values.dtype == bool:
        values = np.where(values, 255, 0)  # white is 255 in files of 8 bits
    own = np.delete(values, alpha, axis=2)
    if own.shape[2] not in (1, 3):
        raise ValueError(f"{own.shape[2]} bands; a mask has a value or a color in each pixel")
    with np.errstate(invalid="ignore"):  # NaN, which differs from its code
        codes = own.astype(np.int64)
    if (codes != own).any() or codes.min() < 0 or codes.max() > 0xFFFF:
        found = f"{own.dtype} values from {own.min()} to {own.max()}"
        raise ValueError(f"{found}; save whole numbers of 0 to 65535")
    if palette is not None:
        table = _PALETTE << 40 | np.arange(len(palette)) << 24 | palette[:, :3] @ _RGB
        table[palette[:, 3] == 0] = _COLOR << 40  # black
        codes = table[codes[..., 0]]
    elif own.shape[2] == 1:
        codes = codes[..., 0] << 24 | codes[..., 0].clip(0, 255) * 0x10101
    else:
        if codes.max() > 255:
            if (codes % 257).any():
                raise ValueError("colors of 16 bits; save them with 8 bits")
            codes //= 257
        codes = _COLOR << 40 | codes.max(2) << 24 | codes @ _RGB
    for band in alpha:  # an eraser leaves any color
        codes[values[..., band] == 0] = _COLOR << 40
    return codes


def index_of(codes):
    return codes >> 24 & 0xFFFF


class ObjectMasks(Masks):
    """Masks with a number or color for each object, or a mask for each object.

    The values are 0 background, 1 object, and 2 border, where two objects are close: the classes of
    `NucleiDataset`.
    """

    names = ("background", "object", "border")

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        self.labels = {0: "no object", 1: "object", 2: "border"}
        return [set(self.labels.values()) for _ in annotations]

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        with reading(annotation):
            codes = codes_of(annotation.path)
            require_size(codes.shape, sizes)
            if annotation.objects:
                numbers = np.zeros(codes.shape, np.uint16)
                for number, path in enumerate([annotation.path, *annotation.objects], start=1):
                    numbers[index_of(codes_of(path)) > 0] = number
            else:
                numbers = np.unique(codes, return_inverse=True)[1].reshape(codes.shape) + 1
                numbers[index_of(codes) == 0] = 0
            return draw_labels(numbers.astype(np.uint16))
