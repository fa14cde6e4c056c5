"""Reading images and label maps from files: whatever does not decode whole is an error by name.

OpenCV answers None or, in older versions, the readable part of a truncated JPEG with grey below;
Pillow raises a different exception for each kind of damage. Here all of it is one error.
"""

import io
import os
import re

import mmcv
import numpy as np
from mmengine import fileio
from PIL import Image

from mmseg_ext.errors import MissingFileError, UnreadableFileError

# What complete files of the two usual formats start and end with.
_FRAMES = ((b"\xff\xd8", b"\xff\xd9"), (b"\x89PNG", b"IEND\xaeB`\x82"))


_PNG = b"\x89PNG"
_MOST_PIXELS = 2**29  # of a PNG, whose header may claim what a few kilobytes then fill
_EXIF_ORIENTATION = 0x0112
# A TIFF, a WebP, and the blocks of JPEG ("Exif") and PNG ("eXIf").
_MAY_BE_TAGGED = re.compile(rb"\A(?:II\*|MM\0|RIFF)|(?i:exif)").search


def read_bytes(path: str, backend_args: dict | None = None) -> bytes:
    """The content of the file at `path`.

    Raises:
        MissingFileError: if there is no such file.
        UnreadableFileError: if it cannot be read.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise UnreadableFileError(f"{path}: is no file")
    try:
        return fileio.get(path, backend_args=backend_args)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UnreadableFileError(f"{path}: cannot be read ({error.strerror or error})") from error


def decode(data: bytes, path: str, flag: str, backend: str) -> np.ndarray:
    """The image in `data`, as `mmcv.imfrombytes(data, flag=flag, backend=backend)` gives it.

    Raises:
        UnreadableFileError: if `data`, read from `path`, is empty, truncated or no image.
    """
    if not data:
        raise UnreadableFileError(f"{path}: is empty (0 bytes)")
    width, height = _png_size(data)
    if width * height > _MOST_PIXELS:
        raise UnreadableFileError(f"{path}: is too large ({width}x{height})")
    reason = ""
    try:
        image = mmcv.imfrombytes(data, flag=flag, backend=backend)
    except Exception as error:  # decoders raise anything: cv2.error, SyntaxError, struct.error
        image = None
        reason = f", {type(error).__name__}"
    whole = _has_its_end(data)
    if image is None:
        what = "does not decode" if whole else "is truncated"
        raise UnreadableFileError(f"{path}: {what} ({len(data)} bytes{reason})")
    if not whole and not _pillow_reads(data):  # a few cameras write more bytes after the end
        raise UnreadableFileError(f"{path}: is truncated ({len(data)} bytes)")
    return image


def _png_size(data: bytes) -> tuple[int, int]:
    """Width and height that the header of a PNG claims; zeros for another format."""
    if not data.startswith(_PNG):
        return 0, 0
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def orientation(data: bytes) -> int:
    """The EXIF orientation of an image, 1 for upright and where it has none."""
    if not _MAY_BE_TAGGED(data[: 2**16]):
        return 1
    try:
        return Image.open(io.BytesIO(data)).getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # damage is told where the pixels are decoded
        return 1


def as_stored(color_type: str) -> str:
    """mmcv's decoding flag that gives the stored pixels, whatever the EXIF orientation says.

    A label map has no such tag: it is of the stored pixels.
    """
    return (
        f"{color_type}_ignore_orientation" if color_type in ("color", "grayscale") else color_type
    )


def _has_its_end(data: bytes) -> bool:
    return all(data.endswith(end) for start, end in _FRAMES if data.startswith(start))


def _pillow_reads(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception:  # as above
        return False
    return True
