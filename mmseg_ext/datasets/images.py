"""Read images and label maps from files; a file that does not decode whole is an error by name.

OpenCV returns None for a damaged file or, in older versions, the readable part of a truncated JPEG
with grey below. Pillow raises a different exception for each kind of damage. Here all of them are
one error. The module needs mmcv alone, so that mmdetection and mmpretrain can use it, too.
"""

import io
from pathlib import Path

import mmcv
import numpy as np
from mmcv.transforms import TRANSFORMS, LoadImageFromFile
from mmengine import fileio
from PIL import Image

from mmseg_ext.errors import UnreadableFileError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")

# What complete files of the two usual formats start and end with.
_FRAMES = ((b"\xff\xd8", b"\xff\xd9"), (b"\x89PNG", b"IEND\xaeB`\x82"))
_EXIF_ORIENTATION = 0x0112
_MAY_BE_TAGGED = (b"Exif", b"eXIf", b"EXIF", b"II*\0", b"MM\0*")  # JPEG, PNG, WebP, TIFF


def image_files(path: Path, recursive: bool = False) -> list[Path]:
    """Return the file at `path`, or the images of a folder and, on request, of its subfolders."""
    if path.is_file():
        return [path]
    found = path.rglob("*") if recursive else path.glob("*")
    return sorted(file for file in found if file.suffix.lower() in IMAGE_SUFFIXES)


def read_bytes(path: str, backend_args: dict | None = None) -> bytes:
    """The content of the file at `path`.

    Raises:
        UnreadableFileError: if it cannot be read; caused by a FileNotFoundError if missing.
    """
    try:
        return fileio.get(path, backend_args=backend_args)
    except FileNotFoundError as error:
        raise UnreadableFileError(f"{path}: there is no such file") from error
    except OSError as error:
        raise UnreadableFileError(f"{path}: cannot be read ({error.strerror or error})") from error


def decode(data: bytes, path: str, flag: str, backend: str) -> np.ndarray:
    """The image in `data`, as `mmcv.imfrombytes(data, flag=flag, backend=backend)` gives it.

    Raises:
        UnreadableFileError: if `data`, read from `path`, is empty, truncated or no image.
    """
    if not data:
        raise UnreadableFileError(f"{path}: is empty (0 bytes)")
    reason = ""
    try:
        image = mmcv.imfrombytes(data, flag=flag, backend=backend)
    except Exception as error:  # decoders raise anything: cv2.error, SyntaxError, struct.error
        image = None
        reason = f", {type(error).__name__}"
    whole = all(data.endswith(end) for start, end in _FRAMES if data.startswith(start))
    if image is None:
        what = "does not decode" if whole else "is truncated"
        raise UnreadableFileError(f"{path}: {what} ({len(data)} bytes{reason})")
    if not whole and not _pillow_reads(data):  # a few cameras write more bytes after the end
        raise UnreadableFileError(f"{path}: is truncated ({len(data)} bytes)")
    return image


def orientation(data: bytes) -> int:
    """The EXIF orientation of an image; 1, upright, if it has none."""
    head = data[: 2**16]
    if not any(mark in head for mark in _MAY_BE_TAGGED):
        return 1
    try:
        return Image.open(io.BytesIO(data)).getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # `decode` reports the damage
        return 1


def as_stored(color_type: str) -> str:
    """mmcv's decoding flag that ignores the EXIF orientation, as a label map has none."""
    return (
        f"{color_type}_ignore_orientation" if color_type in ("color", "grayscale") else color_type
    )


def _pillow_reads(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception:  # as above
        return False
    return True


@TRANSFORMS.register_module()
class CheckedLoadImage(LoadImageFromFile):
    """Load `img` (H, W, 3) as mmcv's `LoadImageFromFile`; an unreadable file stops the run.

    Arguments are those of `LoadImageFromFile`; `ignore_empty` has no effect. An image that has a
    label map is read as it is stored: mmcv would turn it by its EXIF orientation, and not the label
    map with it.

    Raises:
        UnreadableFileError: for a file that is missing, truncated or does not decode.
    """

    def transform(self, results: dict) -> dict:
        path = results["img_path"]
        flag = as_stored(self.color_type) if results.get("seg_map_path") else self.color_type
        image = decode(read_bytes(path, self.backend_args), path, flag, self.imdecode_backend)
        results["img"] = image.astype(np.float32) if self.to_float32 else image
        results["img_shape"] = results["ori_shape"] = image.shape[:2]
        return results
