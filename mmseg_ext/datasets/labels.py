"""Read a label map and check that it is fit for training.

mmsegmentation casts a label map to 8 bits as it loads it (300 becomes 44), takes a colour mask for
a label map, and leaves values outside the classes as they are: the loss stops with a device-side
assert, or the metric drops them silently.
"""

import io
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from mmseg.datasets.transforms import LoadAnnotations
from mmseg.registry import TRANSFORMS
from PIL import Image

from mmseg_ext.datasets.images import decode, read_bytes
from mmseg_ext.errors import LabelError

_SHOWN = 8


def read_label(
    info: Mapping, backend: str = "pillow", backend_args: dict | None = None
) -> np.ndarray:
    """The label map of a sample as mmsegmentation's `LoadAnnotations` gives it, checked.

    Args:
        info: An entry of a dataset's `data_list`: `seg_map_path`, and as far as they are known
            `num_classes`, `reduce_zero_label`, `label_map`, `ignore_index` and the image's
            `ori_shape` (H, W).
        backend: mmcv's decoder.
        backend_args: mmengine's settings for reading the file.

    Returns:
        (H, W) uint8, contiguous: classes and the ignored value.

    Raises:
        UnreadableFileError: if the file is missing or does not decode.
        LabelError: if it has several channels or more than 8 bits, another size than the image,
            or values that are no class.
    """
    path = info["seg_map_path"]
    label = _decode_label(read_bytes(path, backend_args), path, backend)
    height, width = info.get("ori_shape", label.shape)[:2]
    if label.shape != (height, width):
        raise LabelError(
            f"{path}: is {label.shape[1]}x{label.shape[0]}, its image {info['img_path']} "
            f"{width}x{height}"
        )
    values = _values(
        info.get("num_classes") or 255,
        bool(info.get("reduce_zero_label")),
        tuple((info.get("label_map") or {}).items()),
        info.get("ignore_index", 255),
    )
    if values.top is None:
        fits = values.legal[label].all()
    else:  # one fast pass; 255 wraps to 0
        fits = (label + np.uint8(1)).max() <= values.top + 1
    if not fits:
        raise LabelError(f"{path}: {_describe_values(label, values, info)}")
    return cv2.LUT(label, values.mapped) if values.changed else label


def _decode_label(data: bytes, path: str, backend: str) -> np.ndarray:
    """The label map in `data`: (H, W) uint8, one value per pixel, contiguous.

    Raises:
        LabelError: if it has several channels or more than 8 bits.
        UnreadableFileError: if it does not decode.
    """
    label = decode(data, path, "unchanged", backend)
    if label.ndim == 3 and label.shape[2] == 1:
        label = label[..., 0]
    if label.ndim != 2:
        indexed = Image.open(io.BytesIO(data)).mode == "P"
        raise LabelError(
            f"{path}: has {label.shape[2]} channels; expected one that holds class indices"
            + ("; imdecode_backend='pillow' reads those of its palette" if indexed else "")
        )
    if label.dtype == bool:
        label = label.astype(np.uint8)
    if label.dtype != np.uint8:
        raise LabelError(
            f"{path}: is {label.dtype} with values {label.min()} to {label.max()}; expected 8 bits"
        )
    return np.ascontiguousarray(label)


@TRANSFORMS.register_module()
class CheckedLoadAnnotations(LoadAnnotations):
    """Load `gt_seg_map` (H, W) uint8 and refuse what is no label map of the dataset.

    The number of classes comes with each sample from this package's datasets (`CheckedDataset`).
    With another dataset give `num_classes`; without it any value of 8 bits passes. An image that
    comes from no dataset and has no label map, as mmsegmentation's `inference_model` passes it,
    goes through as it is.

    Raises:
        LabelError: for a dataset's image without a label map, and for a label map of several
            channels or more than 8 bits, of another size than its image, or with values outside
            the classes.
        UnreadableFileError: for one that is missing, truncated or does not decode.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        reduce_zero_label: bool | None = None,
        backend_args: dict | None = None,
        imdecode_backend: str = "pillow",
    ):
        super().__init__(reduce_zero_label, backend_args, imdecode_backend)
        self.num_classes = num_classes

    def _load_seg_map(self, results: dict) -> None:
        if "seg_map_path" not in results:
            if "sample_idx" not in results:
                return
            raise LabelError(f"{results['img_path']}: its annotation is missing (no seg_map_path)")
        info = dict(results)
        if self.num_classes is not None:
            info["num_classes"] = self.num_classes
        if self.reduce_zero_label is not None:
            info["reduce_zero_label"] = self.reduce_zero_label
        results["gt_seg_map"] = read_label(info, self.imdecode_backend, self.backend_args)
        results["seg_fields"].append("gt_seg_map")

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + f", num_classes={self.num_classes})"


def histogram(label: np.ndarray) -> np.ndarray:
    """Pixels of each value in `label` (H, W) uint8: (256,) int64."""
    blocks = np.array_split(label, label.size // 2**24 + 1)  # OpenCV counts in float32
    counts = [cv2.calcHist([block], [0], None, [256], [0, 256]) for block in blocks]
    return np.sum(counts, axis=0, dtype=np.int64).reshape(256)


def describe_counts(counts: Mapping[int, int]) -> str:
    """'33 (432 pixels), ...' for pixels of each value, at most eight of them."""
    shown = [f"{value} ({count} pixels)" for value, count in list(counts.items())[:_SHOWN]]
    more = [f"{len(counts) - _SHOWN} more"] if len(counts) > _SHOWN else []
    return ", ".join(shown + more)


class _Values(NamedTuple):
    """What the values 0 ... 255 of a file are to a dataset."""

    mapped: np.ndarray  # (256,) uint8, what each becomes
    legal: np.ndarray  # (256,) bool
    top: int | None  # if exactly 0 ... top and 255 are legal, as usual
    changed: bool


@lru_cache(maxsize=64)
def _values(
    num_classes: int, reduce_zero_label: bool, label_map: tuple, ignore_index: int
) -> _Values:
    reduced = np.arange(256, dtype=np.uint8)
    if reduce_zero_label:  # mmsegmentation's arithmetic
        reduced[0] = 255
        reduced -= 1
        reduced[reduced == 254] = 255
    mapped = reduced.copy()
    for old_class, new_class in label_map:
        mapped[reduced == old_class] = new_class
    known = [old_class for old_class, _ in label_map] or list(range(num_classes))
    named = np.isin(reduced, known) | (reduced == ignore_index)
    legal = named & ((mapped < num_classes) | (mapped == ignore_index))
    top = int(legal.sum()) - 2
    usual = legal[: top + 1].all() and legal[255]
    return _Values(mapped, legal, top if usual else None, reduce_zero_label or bool(label_map))


def _describe_values(label: np.ndarray, values: _Values, info: Mapping) -> str:
    counts = histogram(label)
    illegal = {int(v): int(counts[v]) for v in np.flatnonzero(counts * ~values.legal)}
    how = ", with reduce_zero_label" if info.get("reduce_zero_label") else ""
    how += ", with a mapping of classes" if info.get("label_map") else ""
    return (
        f"values outside the {info.get('num_classes') or 255} classes: {describe_counts(illegal)}; "
        f"legal are {_ranges(np.flatnonzero(values.legal))}{how}"
    )


def _ranges(values: np.ndarray) -> str:
    """'0 to 20 and 255' for the sorted values 0, 1, ..., 20, 255."""
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return " and ".join(texts)
