"""Images that are what mmcv's `LoadImageFromFile` gives, or an error by the file's name.

Where the config says so, an unreadable one is exchanged for another image: then every skip is
warned of, noted in a journal and counted at the end of training by `SkippedImagesHook`. It needs
mmcv alone, so that it loads for mmdetection and mmpretrain, too.
"""

import logging
import os
import tempfile
import uuid
from collections.abc import Iterator

import numpy as np
from mmcv.transforms import TRANSFORMS, LoadImageFromFile
from mmengine.logging import print_log

from mmseg_ext.datasets.files import as_stored, decode, read_bytes
from mmseg_ext.errors import UnreadableFileError


@TRANSFORMS.register_module()
class CheckedLoadImage(LoadImageFromFile):
    """Load `img` (H, W, 3) as mmcv's `LoadImageFromFile`, and name the file that is unreadable.

    An image that has a label map is read as it is stored: mmcv would turn it by its EXIF
    orientation, and not the label map with it.

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
            labelled = bool(results.get("seg_map_path"))
            flag = as_stored(self.color_type) if labelled else self.color_type
            image = decode(data, path, flag, self.imdecode_backend)
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
