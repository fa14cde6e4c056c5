"""Loading that refuses, by the file's name, what stock loading corrupts or replaces in silence.

`CheckedLoadAnnotations` gives what mmsegmentation's `LoadAnnotations` gives, or an error;
`CheckedLoadImage` what `LoadImageFromFile` gives, or an error, or, where the config says so,
another image: then every skip is warned of, noted in a journal and counted at the end of training
by `SkippedImagesHook`.
"""

import logging
import os
import tempfile
import uuid
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine.logging import print_log
from mmseg.datasets.transforms import LoadAnnotations
from mmseg.registry import TRANSFORMS

from mmseg_ext.datasets.files import UnreadableFileError, decode, read_bytes
from mmseg_ext.datasets.labels import LabelError, LabelRule, decode_label, require_size


@TRANSFORMS.register_module()
class CheckedLoadAnnotations(LoadAnnotations):
    """Load `gt_seg_map` (H, W) uint8 and refuse what is no label map of the dataset.

    The number of classes comes with each sample from this package's datasets (`CheckedDataset`);
    for another dataset it is given here. An image that comes from no dataset and has no label
    map, as mmsegmentation's `inference_model` passes it, goes through as it is.

    Raises:
        ValueError: at the first sample, if `num_classes` is in neither place or
            `reduce_zero_label` differs from the dataset's.
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
        path = results["seg_map_path"]
        data = read_bytes(path, self.backend_args)
        label = decode_label(data, path, self.imdecode_backend)
        if "ori_shape" in results:
            require_size(label, results["ori_shape"][:2], path, results["img_path"])
        results["gt_seg_map"] = self._rule(results).apply(label, path)
        results["seg_fields"].append("gt_seg_map")

    def _rule(self, results: dict) -> LabelRule:
        num_classes = self.num_classes or results.get("num_classes")
        if num_classes is None:
            raise ValueError(
                "CheckedLoadAnnotations: the dataset does not tell its number of classes; give "
                "dict(type='CheckedLoadAnnotations', num_classes=...)"
            )
        return _shared(LabelRule.from_data_info(results, num_classes, self.reduce_zero_label))

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + f", num_classes={self.num_classes})"


@lru_cache(maxsize=64)
def _shared(rule: LabelRule) -> LabelRule:
    """The first rule equal to this one, with its tables made."""
    return rule


@TRANSFORMS.register_module()
class CheckedLoadImage(LoadImageFromFile):
    """Load `img` (H, W, 3) as mmcv's `LoadImageFromFile`, and name the file that is unreadable.

    Args:
        on_unreadable: `'raise'` stops the run. `'skip'` lets the dataset fetch another image in
            its place, at random; it is for training alone, since the score of an image would be
            replaced by another's. Each skip is warned of and noted in `journal`.
        to_float32, color_type, imdecode_backend, backend_args: As for `LoadImageFromFile`.

    Raises:
        ValueError: for another `on_unreadable`.
        UnreadableFileError: for a file that is missing, truncated or does not decode, unless it
            is skipped.
    """

    def __init__(
        self,
        on_unreadable: str = "raise",
        to_float32: bool = False,
        color_type: str = "color",
        imdecode_backend: str = "cv2",
        backend_args: dict | None = None,
    ):
        super().__init__(
            to_float32=to_float32,
            color_type=color_type,
            imdecode_backend=imdecode_backend,
            backend_args=backend_args,
        )
        if on_unreadable not in ("raise", "skip"):
            raise ValueError(f"on_unreadable must be 'raise' or 'skip', not {on_unreadable!r}")
        self.on_unreadable = on_unreadable
        # A name only: it reaches the workers however they are started, and the first skip of any
        # of them makes the file.
        self.journal = os.path.join(tempfile.gettempdir(), f"skipped-images-{uuid.uuid4().hex}")

    def transform(self, results: dict) -> dict | None:
        path = results["img_path"]
        try:
            data = read_bytes(path, self.backend_args)
            image = decode(data, path, self.color_type, self.imdecode_backend)
        except UnreadableFileError as error:
            if self.on_unreadable == "raise":
                raise
            self._note(str(error))
            return None
        results["img"] = image.astype(np.float32) if self.to_float32 else image
        results["img_shape"] = results["ori_shape"] = image.shape[:2]
        return results

    def _note(self, message: str) -> None:
        print_log(f"skipped {message}", logger="current", level=logging.WARNING)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND  # workers append whole lines
        file = os.open(self.journal, flags, 0o600)
        try:
            os.write(file, f"{message}\n".encode())
        finally:
            os.close(file)

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + f", on_unreadable={self.on_unreadable!r})"


def image_loaders(dataset) -> Iterator[CheckedLoadImage]:
    """The `CheckedLoadImage`s of `dataset` and, where it wraps others, of those."""
    for part in (*getattr(dataset, "datasets", ()), getattr(dataset, "dataset", None)):
        if part is not None:
            yield from image_loaders(part)
    for transform in getattr(getattr(dataset, "pipeline", None), "transforms", ()):
        if isinstance(transform, CheckedLoadImage):
            yield transform
