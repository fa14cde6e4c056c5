"""Which label maps are fit for training, and what their values become.

mmsegmentation casts a label map to 8 bits as it loads it (300 becomes 44), leaves values outside
the classes as they are (a device-side assert in the loss, or silently dropped by the metric) and
takes a colour mask for a label map. A `LabelRule` says which values are legal; the value of each
legal pixel is the one that mmsegmentation's `LoadAnnotations` gives.
"""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from PIL import Image

from mmseg_ext.datasets.files import decode
from mmseg_ext.errors import LabelError

_EXACT_IN_FLOAT32 = 2**24  # OpenCV's histograms are float32
_SHOWN = 8


def decode_label(data: bytes, path: str, backend: str = "pillow") -> np.ndarray:
    """The label map in `data`: (H, W) uint8, one value per pixel, contiguous.

    Raises:
        LabelError: if it has several channels or more than 8 bits.
        UnreadableFileError: if it does not decode.
    """
    label = decode(data, path, "unchanged", backend)
    if label.ndim == 3 and label.shape[2] == 1:
        label = label[..., 0]
    if label.ndim != 2:
        raise LabelError(f"{path}: {_describe_colours(label, data)}")
    if label.dtype == bool:
        label = label.astype(np.uint8)
    if label.dtype != np.uint8:
        raise LabelError(f"{path}: {_describe_depth(label)}")
    return np.ascontiguousarray(label)


def _describe_colours(label: np.ndarray, data: bytes) -> str:
    channels = label.shape[-1]
    colours = np.unique(label.reshape(-1, channels), axis=0)  # (n, channels), in OpenCV's order
    rgb = [tuple(map(int, (*c[2::-1], *c[3:]) if channels >= 3 else c)) for c in colours[:3]]
    shown = ", ".join(map(str, rgb)) + (", ..." if len(colours) > 3 else "")
    if Image.open(io.BytesIO(data)).mode == "P":
        cure = "it has a palette, whose indices imdecode_backend='pillow' reads"
    else:
        cure = "expected one channel that holds class indices"
    return f"has {channels} channels, with {len(colours)} colours ({shown}); {cure}"


def _describe_depth(label: np.ndarray) -> str:
    low, high = label.min(), label.max()
    text = f"is {label.dtype} with values {low} to {high}; expected 8 bits"
    if np.issubdtype(label.dtype, np.integer) and high > 255:
        text += f" ({high} would be read as {int(high) % 256})"
    return text


@dataclass(frozen=True)
class LabelRule:
    """Legal values of a dataset's label maps, and their mapping to classes.

    Args:
        num_classes: Number of classes after the mapping, 2 to 255.
        reduce_zero_label: 0 is ignored in the file, and 1 is the first class.
        label_map: Pairs (class in the file, class in training), for a subset of the classes;
            mmseg's datasets make it when they are given `metainfo=dict(classes=...)`.
        ignore_index: The value that no loss and no metric counts.

    Raises:
        LabelError: for `num_classes` outside 2 ... 255.
    """

    num_classes: int
    reduce_zero_label: bool = False
    label_map: tuple[tuple[int, int], ...] | None = None
    ignore_index: int = 255

    def __post_init__(self):
        if self.num_classes < 2:
            raise LabelError(
                f"a dataset of {self.num_classes} class leaves nothing to tell apart: give what "
                "surrounds the class a class, too"
            )
        if self.num_classes > 255:
            raise LabelError(
                f"a dataset of {self.num_classes} classes does not fit label maps of 8 bits, which "
                "hold 255 classes and the ignored value"
            )

    @classmethod
    def from_data_info(
        cls, info: Mapping, num_classes: int, reduce_zero_label: bool | None = None
    ) -> "LabelRule":
        """The rule for one entry of a dataset's `data_list`.

        Raises:
            ValueError: if `reduce_zero_label` is given and the dataset says otherwise.
        """
        reduce = info.get("reduce_zero_label", False)
        if reduce_zero_label is not None and reduce_zero_label != reduce:
            raise ValueError(
                f"reduce_zero_label is {reduce_zero_label} in the annotation loader and {reduce} "
                "in the dataset"
            )
        label_map = info.get("label_map")
        return cls(
            num_classes,
            reduce,
            None if label_map is None else tuple(label_map.items()),
            info.get("ignore_index", 255),
        )

    @cached_property
    def mapped(self) -> np.ndarray:
        """(256,) uint8: what each value of a file becomes; mmseg's arithmetic."""
        values = np.arange(256, dtype=np.uint8)
        if self.reduce_zero_label:
            values[0] = 255
            values -= 1
            values[values == 254] = 255
        new = values.copy()
        for old_class, new_class in self.label_map or ():
            new[values == old_class] = new_class
        return new

    @cached_property
    def illegal(self) -> np.ndarray:
        """(256,) uint8: 1 for each value that a file must not hold."""
        reduced = LabelRule(self.num_classes, self.reduce_zero_label).mapped
        known = [old for old, _ in self.label_map] if self.label_map else range(self.num_classes)
        named = np.isin(reduced, list(known)) | (reduced == self.ignore_index)
        usable = (self.mapped < self.num_classes) | (self.mapped == self.ignore_index)
        return (~(named & usable)).astype(np.uint8)

    def apply(self, label: np.ndarray, path: str) -> np.ndarray:
        """`label` (H, W), as `decode_label` gives it, with classes for values.

        Raises:
            LabelError: if it holds a value that is illegal; names each and its pixel count.
        """
        if self._is_violated(label):
            raise LabelError(f"{path}: {self.describe(self.offending(histogram(label)))}")
        if self.reduce_zero_label or self.label_map:
            return cv2.LUT(label, self.mapped)
        return label

    @cached_property
    def _top(self) -> int | None:
        """The largest legal value but 255, where 0 to it and 255 are legal: the usual case."""
        legal = np.flatnonzero(self.illegal == 0)
        top = len(legal) - 2
        usual = np.array_equal(legal, [*range(top + 1), 255])
        return top if usual else None

    def _is_violated(self, label: np.ndarray) -> bool:
        if self._top is not None:  # one pass without a table: 255 wraps to 0
            return (label + np.uint8(1)).max() > self._top + 1
        return cv2.countNonZero(cv2.LUT(label, self.illegal)) > 0

    def offending(self, counts: np.ndarray) -> dict[int, int]:
        """Illegal values and their pixels in `counts` (256,), as `histogram` gives it."""
        return {int(v): int(counts[v]) for v in np.flatnonzero(counts * self.illegal)}

    def class_counts(self, counts: np.ndarray) -> np.ndarray:
        """Pixels of each class (num_classes,) int64, from `counts` (256,) of a legal label map."""
        per_value = np.bincount(self.mapped, weights=counts, minlength=256)
        per_value[self.ignore_index] = 0
        return per_value[: self.num_classes].astype(np.int64)

    def describe(self, offending: Mapping[int, int]) -> str:
        """One line that names the offending values, and the legal ones of the file."""
        shown = [f"{value} ({count} pixels)" for value, count in list(offending.items())[:_SHOWN]]
        more = [f"{len(offending) - _SHOWN} more"] if len(offending) > _SHOWN else []
        legal = _ranges(np.flatnonzero(self.illegal == 0))
        how = ", with reduce_zero_label" if self.reduce_zero_label else ""
        how += ", with a mapping of classes" if self.label_map else ""
        return (
            f"values outside the {self.num_classes} classes: {', '.join(shown + more)}; "
            f"legal are {legal}{how}"
        )


def refuse_binary(counts: np.ndarray, classes: int, path: str, rule: "LabelRule") -> None:
    """Of the pixels `counts` (256,) of many label maps: not just 0 and 255.

    Such masks mean two classes, and 255 is ignored: one class is left, and any model has 100 mIoU.

    Raises:
        LabelError: if 0 and 255 are the values, and 255 is ignored.
    """
    if rule.ignore_index == 255 and np.flatnonzero(counts).tolist() == [0, 255]:
        raise LabelError(
            f"{path} and the others hold 0 and 255 alone, and 255 is ignored: one class of "
            f"{classes} is left, and every model scores 100. Write the other class as 1"
        )


def histogram(label: np.ndarray) -> np.ndarray:
    """Pixels of each value in `label` (H, W) uint8: (256,) int64."""
    if label.size >= _EXACT_IN_FLOAT32:
        return np.bincount(label.ravel(), minlength=256)
    return cv2.calcHist([label], [0], None, [256], [0, 256]).reshape(256).astype(np.int64)


def require_size(label: np.ndarray, image_size: Iterable[int], path: str, image: str) -> None:
    """The label map (H, W) has the size (H, W) that the image at path `image` has in its file.

    Raises:
        LabelError: if it has another.
    """
    height, width = image_size
    if label.shape != (height, width):
        raise LabelError(
            f"{path}: is {label.shape[1]}x{label.shape[0]}, its image {image} {width}x{height}"
        )


def _ranges(values: np.ndarray) -> str:
    """'0 to 20 and 255' for the sorted values 0, 1, ..., 20, 255."""
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return " and ".join(texts)
