"""Image files: finding and reading them, and one error that names a file that does not decode.

OpenCV returns None for a damaged file, and older versions fill the missing part of a truncated JPEG
with gray. Pillow raises a different exception for each kind of damage. This module needs mmcv but
not mmsegmentation, so mmdetection and mmpretrain can use it.
"""

import fnmatch
import io
import os
from collections.abc import Iterable
from pathlib import Path

import mmcv
import numpy as np
from mmcv.transforms import TRANSFORMS, LoadImageFromFile
from mmengine import fileio
from PIL import Image
from rich.console import Console
from rich.progress import track

from mmseg_ext.errors import UnreadableFileError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")

# The first and last bytes of complete JPEG and PNG files.
_FRAMES = ((b"\xff\xd8", b"\xff\xd9"), (b"\x89PNG", b"IEND\xaeB`\x82"))
EXIF_ORIENTATION = 0x0112


def image_files(path: Path, recursive: bool = False) -> list[Path]:
    """Return the file at `path`, or the images of a folder and, on request, of its subfolders."""
    if path.is_file():
        return [path]
    found = files_below(path) if recursive else sorted(f for f in path.glob("*") if f.is_file())
    return [file for file in found if file.suffix.lower() in IMAGE_SUFFIXES]


def files_below(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the regular files in a folder and its subfolders, also the linked ones, in order."""
    found: list[Path] = []
    places, seen = [str(folder)], set()
    for place in places:  # links come after all folders, because they can lead to one of them
        for root, folders, names in os.walk(place):
            if (real := os.path.realpath(root)) in seen:
                folders.clear()
                continue
            seen.add(real)
            found += [Path(root, name) for name in fnmatch.filter(names, pattern)]
            folders.sort()
            places += [path for n in folders if os.path.islink(path := os.path.join(root, n))]
    return sorted(path for path in found if path.is_file())


def progress(items: Iterable, text: str, total: int) -> Iterable:
    """Yield `items` with a progress bar, if there are several and the terminal can show one."""
    console = Console(stderr=True)
    hidden = total == 1 or not console.is_terminal
    return track(items, text, total, console=console, disable=hidden)


def read_bytes(path: str, backend_args: dict | None = None) -> bytes:
    """Return the content of the file at `path`.

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
    """Return the image in `data` like `mmcv.imfrombytes(data, flag=flag, backend=backend)`.

    Raises:
        UnreadableFileError: if `data`, read from `path`, is empty, truncated or not an image.
    """
    complete = all(data.endswith(end) for start, end in _FRAMES if data.startswith(start))
    try:
        image = mmcv.imfrombytes(data, flag=flag, backend=backend)
        if not complete:  # some cameras write bytes after the image, which Pillow accepts
            Image.open(io.BytesIO(data)).load()
    except Exception:  # decoders raise anything: cv2.error, SyntaxError, struct.error
        image = None
    if image is None:
        problem = "does not decode" if complete else "is truncated"
        raise UnreadableFileError(f"{path}: {problem} ({len(data)} bytes)")
    return image


def orientation(data: bytes) -> int:
    """Return the EXIF orientation of an image, 1 to 8; 1 (upright) if it has none."""
    try:
        return Image.open(io.BytesIO(data)).getexif().get(EXIF_ORIENTATION, 1)
    except Exception:  # `decode` reports the damage
        return 1


@TRANSFORMS.register_module()
class CheckedLoadImage(LoadImageFromFile):
    """Load `img` (H, W, 3) like mmcv's `LoadImageFromFile`; an unreadable file stops the run.

    The arguments are the same; `ignore_empty` has no effect. An image with a label map is read
    without its EXIF rotation, because mmcv would rotate the image but not the label map. If the
    results have `content`, these bytes are decoded instead of the file `img_path`.

    Raises:
        UnreadableFileError: if the file is missing, truncated or does not decode.
    """

    def transform(self, results: dict) -> dict:
        path = results["img_path"]
        flag = self.color_type
        if results.get("seg_map_path") and flag in ("color", "grayscale"):
            flag += "_ignore_orientation"
        content = results.pop("content", None)
        if content is None:
            content = read_bytes(path, self.backend_args)
        image = decode(content, path, flag, self.imdecode_backend)
        results["img"] = image.astype(np.float32) if self.to_float32 else image
        results["img_shape"] = results["ori_shape"] = image.shape[:2]
        return results
