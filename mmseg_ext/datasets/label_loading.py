"""Label maps: reading, and refusing values that training would misread.

mmsegmentation casts a label map to 8 bits (300 becomes 44), takes a color mask for a label map, and
passes values outside the classes: the loss fails with a device-side assert, or the metric drops
them silently.
"""

from collections.abc import Iterable
from functools import lru_cache

import cv2
import numpy as np
from mmseg.datasets.transforms import LoadAnnotations
from mmseg.registry import TRANSFORMS

from mmseg_ext.errors import LabelError, join_names, labels_outside
from mmseg_ext.images.files import decode, read, read_bytes
from mmseg_ext.images.values import is_tiff


def _decode_label(data: bytes, path: str, backend: str) -> np.ndarray:
    """Return the label map in `data`: (H, W), uint8 or uint16."""
    if backend == "cv2" and is_tiff(data):
        label = read(data, path, indices=True).values
        if label.shape[2] == 1:
            label = label[..., 0]
    else:
        label = decode(data, path, "unchanged", backend)
    if label.ndim != 2:
        raise LabelError(
            f"{path}: has {label.shape[2]} channels instead of class indices; if it has a palette, "
            "set imdecode_backend='pillow'"
        )
    if label.dtype.kind not in "bui" or label.min() < 0 or label.max() > 0xFFFF:
        raise LabelError(
            f"{path}: is {label.dtype} with values {label.min()} to {label.max()}; "
            "save it with 8 or 16 bits"
        )
    if label.dtype != np.uint8:
        label = label.astype(np.uint16)
    return label


@lru_cache(8)  # a dataset's label maps have the same classes
def _class_table(
    size: int, num_classes: int, ignored: int, reduce_zero: bool, label_map: tuple
) -> np.ndarray:
    """Return the class of each value 0 ... size - 1, -1 for illegal values, (size,) int32.

    `label_map` has pairs of old and new classes.
    """
    reduced = np.arange(size, dtype=np.int32)
    if reduce_zero:
        reduced = np.where((reduced == 0) | (reduced == 255), 255, reduced - 1)
    table = reduced.copy()
    for old_class, new_class in label_map:
        table[reduced == old_class] = new_class
    # As in mmsegmentation, other values stay. The target of a mapped class would merge with it.
    merged = [new_class for _, new_class in label_map]
    kept = (reduced < num_classes) & ~np.isin(reduced, merged)
    is_mapped = np.isin(reduced, [old_class for old_class, _ in label_map])
    known = is_mapped | kept | (reduced == ignored)
    mapped = (table < num_classes) | (table == ignored)
    has_8_bits = table < 256
    return np.where(known & mapped & has_8_bits, table, -1)


def _look_up(table: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Return `table[label]` for a table of bytes."""
    if label.dtype == np.uint8:
        return cv2.LUT(label, table)  # in less time
    return table[label]


def describe_counts(values: Iterable[int], counts: Iterable[int]) -> str:
    """Return '33 (432 pixels), ...' for values and the number of pixels of each."""
    pairs = zip(values, counts, strict=True)
    return join_names([f"{value} ({count} pixels)" for value, count in pairs])


@TRANSFORMS.register_module()
class CheckedLoadAnnotations(LoadAnnotations):
    """Load `gt_seg_map` (H, W) and refuse files that are not label maps of the dataset.

    The map is uint8, as in mmsegmentation. This package's datasets (`CheckedDataset`) add the
    number of classes to each sample. For other datasets set `num_classes`; without it all values of
    8 bits pass. Images without a dataset and a label map, as in mmsegmentation's `inference_model`,
    pass without labels. `kwargs` are the arguments of mmsegmentation's `LoadAnnotations`.

    Raises:
        UnreadableFileError: if the file is missing or does not decode.
        LabelError: for a dataset's image without a label map, and for a label map with several
            channels, another size than the image, or values that are neither integers nor classes.
    """

    def __init__(self, num_classes: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.num_classes = num_classes

    def _load_seg_map(self, results: dict) -> None:
        if "seg_map_path" not in results:
            if "sample_idx" not in results:
                return
            raise LabelError(f"{results['img_path']}: its annotation is missing (no seg_map_path)")
        info = dict(results)  # with this transform's own settings
        if self.num_classes is not None:
            info["num_classes"] = self.num_classes
        if self.reduce_zero_label is not None:
            info["reduce_zero_label"] = self.reduce_zero_label
        path = info["seg_map_path"]
        label = _decode_label(read_bytes(path, self.backend_args), path, self.imdecode_backend)
        height, width = info.get("ori_shape", label.shape)[:2]
        if label.shape != (height, width):
            raise LabelError(
                f"{path}: is {label.shape[1]}x{label.shape[0]}, its image {info['img_path']} "
                f"{width}x{height}"
            )
        num_classes = info.get("num_classes") or 256
        ignored = info.get("ignore_index", 255)
        table = _class_table(
            size=max(256, int(label.max()) + 1),
            num_classes=num_classes,
            ignored=ignored,
            reduce_zero=bool(info.get("reduce_zero_label")),
            label_map=tuple((info.get("label_map") or {}).items()),
        )
        illegal = _look_up((table < 0).view(np.uint8), label).view(bool)  # (H, W)
        if illegal.any():
            values, pixels = np.unique(label[illegal], return_counts=True)
            counts = describe_counts(values, pixels)
            legal_values = np.flatnonzero(table >= 0).tolist()
            expected = set(legal_values) - {ignored} or {ignored}
            numbers = f"{min(expected)} to {max(expected)}"
            raise LabelError(f"{path}: {labels_outside(num_classes, counts, numbers, ignored)}")
        results["gt_seg_map"] = _look_up(table.astype(np.uint8), label)
        results["seg_fields"].append("gt_seg_map")
