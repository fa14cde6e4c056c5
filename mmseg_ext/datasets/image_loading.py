"""Loading images; a file that cannot be used raises an error that names it.

This module needs mmcv but not mmsegmentation, so mmdetection and mmpretrain can use it.
"""

import warnings
from typing import Any

import cv2
import numpy as np
from mmcv.transforms import TRANSFORMS, LoadImageFromFile

from mmseg_ext.errors import UnreadableFileError
from mmseg_ext.images.files import decode, orientation, read, read_bytes
from mmseg_ext.images.values import (
    Photo,
    ValueRange,
    exchange_red_and_blue,
    is_deep,
    is_tiff,
    range_of_bands,
    turned,
)

warned_kinds: set[str] = set()  # kinds of files about which this process has warned


@TRANSFORMS.register_module()
class CheckedLoadImage(LoadImageFromFile):
    """Load `img` (H, W, channels) like mmcv's `LoadImageFromFile`; a bad file stops the run.

    Its arguments are mmcv's and those below; `ignore_empty` has no effect. Three channels are BGR,
    and other numbers are in the order of the file. An image with a label map is read without its
    EXIF rotation, because mmcv would rotate the image but not the label map. If the results have
    `content`, these bytes are decoded instead of the file `img_path`.

    With `color_type='unchanged'` or another `imdecode_backend`, only mmcv reads the file.

    Args:
        channels: of the network. Gray images are repeated for three. Alpha is left out unless the
            network has a channel for it.
        value_range: the values (low, high) that become 0 and 255, or such a pair for each channel.
            By default 0 and the largest value of the file's type: 65535, or 1 for floats. Values of
            8 bits stay as they are.

    Raises:
        ValueError: for a range that has not two numbers, low and high, or a pair for each channel.
        UnreadableFileError: if the file is missing, truncated or does not decode, has another
            number of channels, or has values that need a range.
    """

    def __init__(
        self,
        to_float32: bool = False,
        color_type: str = "color",
        imdecode_backend: str = "cv2",
        file_client_args: dict | None = None,
        ignore_empty: bool = False,
        *,
        backend_args: dict | None = None,
        channels: int = 3,
        value_range: ValueRange | None = None,
    ):
        backends = dict(file_client_args=file_client_args, backend_args=backend_args)
        super().__init__(
            to_float32, color_type, imdecode_backend, ignore_empty=ignore_empty, **backends
        )
        if value_range is not None:
            range_of_bands(value_range, channels)
        self.channels, self.value_range = channels, value_range

    def transform(self, results: dict) -> dict:
        """Add `img`, `img_shape`, `ori_shape`, and `value_note` with the photo's note.

        If the results have a `photo`, it replaces the file, which `img_path` then only names.
        """
        path = results["img_path"]
        photo: Photo | None = results.pop("photo", None)
        content: Any = results.pop("content", None)  # bytes
        has_labels = bool(results.get("seg_map_path"))
        rotates = not has_labels and not self.color_type.endswith("ignore_orientation")
        if photo is None and content is None:
            content = read_bytes(path, self.backend_args)
        # Whether the config chooses how mmcv reads the file. JPEG stores gray itself; mmcv would
        # change values of more bits, and other channels.
        by_mmcv = self.imdecode_backend != "cv2" or self.color_type == "unchanged"
        if photo is None and self.channels == 3 and self.color_type.startswith("grayscale"):
            by_mmcv |= not (is_tiff(content) or is_deep(content))
        if photo is None and by_mmcv:
            image = decode(content, path, self.color_type, self.imdecode_backend)
            if rotates:
                image = turned(image, orientation(content))
        else:
            photo = photo or read(content, path)
            if rotates:
                photo = photo.upright()
            if self.color_type == "unchanged":
                image = photo.values  # (H, W, C)
                if self.imdecode_backend != "tifffile":
                    image = exchange_red_and_blue(image)  # as mmcv reads a file
            else:
                note = photo.note(self.value_range)
                if note:
                    results["value_note"] = note
                if note and note not in warned_kinds:
                    warned_kinds.add(note)
                    warnings.warn(f"{path}: {note}", stacklevel=2)
                try:
                    image = photo.fit(self.channels, self.value_range)
                except ValueError as error:
                    raise UnreadableFileError(f"{path}: {error}") from error
                if self.channels == 3:
                    image = image[..., ::-1]  # BGR, as OpenCV has decoded it
                if self.color_type.startswith("grayscale"):
                    image = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_BGR2GRAY)
        image = np.ascontiguousarray(image, np.float32 if self.to_float32 else None)
        results["img"] = image
        results["img_shape"] = results["ori_shape"] = image.shape[:2]
        return results
