"""Image files: finding and reading them, and one error that names a file that does not decode.

OpenCV reads photos, as in mmcv. It returns None for a damaged file, and older versions fill the
missing part of a truncated JPEG with gray. Pillow raises a different exception for each kind of
damage. `image_values` reads TIFFs, images of more than 8 bits, and other numbers of channels than
three. This module needs mmcv but not mmsegmentation, so mmdetection and mmpretrain can use it.
"""

import io
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
from mmcv.transforms import TRANSFORMS, LoadImageFromFile
from mmengine import fileio
from PIL import Image
from rich.console import Console
from rich.progress import track

from mmseg_ext.datasets.image_values import (
    EXIF_ORIENTATION,
    IMAGE_SUFFIXES,
    Pixels,
    ValueRange,
    is_deep,
    is_tiff,
    read_pixels,
)
from mmseg_ext.errors import UnreadableFileError

# The first and last bytes of complete JPEG and PNG files.
_FRAMES = ((b"\xff\xd8", b"\xff\xd9"), (b"\x89PNG", b"IEND\xaeB`\x82"))
warned_kinds: set[str] = set()  # kinds of files about which this process has warned


def image_files(path: Path, recursive: bool = False) -> list[Path]:
    """Return the file at `path`, or the images of a folder and, on request, of its subfolders."""
    if path.is_file():
        return [path]
    here = sorted(file for file in path.glob("[!.]*") if file.is_file())
    found = files_below(path) if recursive else here
    return [file for file in found if file.suffix.lower() in IMAGE_SUFFIXES]


def files_below(folder: Path) -> list[Path]:
    """Return the regular files in a folder and its subfolders, also the linked ones, in order.

    Hidden files and folders are left out, such as macOS and Jupyter write next to images.
    """
    found: list[Path] = []
    seen = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(root)) in seen:
            folders.clear()
            continue
        seen.add(real)
        found += [Path(root, name) for name in names if not name.startswith(".")]
        # Links come last, because they can lead to one of the folders.
        folders.sort(key=lambda name: (os.path.islink(os.path.join(root, name)), name))
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def progress(items: Iterable, text: str, total: int) -> Iterable:
    """Yield `items` with a progress bar, if there are several and the terminal can show one."""
    console = Console(stderr=True)
    if total == 1 or not console.is_terminal:
        return items  # a hidden bar of rich starts a thread and waits for its end
    return track(items, text, total, console=console)


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image file; only its header is read.

    Raises:
        Exception: of a decoder, if it cannot read the header.
    """
    with path.open("rb") as file:
        tiff = is_tiff(file.read(4))
    if tiff:
        import tifffile  # Pillow opens few kinds

        with tifffile.TiffFile(path) as file:
            page: Any = file.pages[0]
            return page.imagewidth, page.imagelength
    Image.MAX_IMAGE_PIXELS = None  # the callers have a limit of their own
    with Image.open(path) as image:
        return image.size


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
    try:
        image = mmcv.imfrombytes(data, flag=flag, backend=backend)
        if not _is_complete(data):  # some cameras write bytes after the image, which Pillow accepts
            Image.open(io.BytesIO(data)).load()
    except Exception:  # decoders raise anything: cv2.error, SyntaxError, struct.error
        image = None
    if image is None:
        raise _damage(data, path)
    return image


def read(data: bytes, path: str, indices: bool = False) -> Pixels:
    """Return the image in `data` as the file declares it; see `image_values.read_pixels`.

    Raises:
        UnreadableFileError: if `data`, read from `path`, is damaged, or a TIFF that cannot be read.
    """
    try:
        return read_pixels(data, indices)
    except Exception as error:  # of a decoder, or about a TIFF
        if is_tiff(data) and isinstance(error, ValueError | NotImplementedError):
            raise UnreadableFileError(f"{path}: {' '.join(str(error).split())}") from error
        raise _damage(data, path) from error


def _is_complete(data: bytes) -> bool:
    return all(data.endswith(end) for start, end in _FRAMES if data.startswith(start))


def _damage(data: bytes, path: str) -> UnreadableFileError:
    problem = "does not decode" if _is_complete(data) else "is truncated"
    return UnreadableFileError(f"{path}: {problem} ({len(data)} bytes)")


def orientation(data: bytes) -> int:
    """Return the EXIF orientation of an image, 1 to 8; 1 (upright) if it has none."""
    try:
        return Image.open(io.BytesIO(data)).getexif().get(EXIF_ORIENTATION, 1)
    except Exception:  # `decode` reports the damage
        return 1


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
        self.channels, self.value_range = channels, value_range

    def transform(self, results: dict) -> dict:
        """Add `img`, `img_shape`, `ori_shape`, and `value_note` if a range is missing.

        If the results have `pixels`, they replace the file, which `img_path` then only names.
        """
        path, flag = results["img_path"], self.color_type
        turned = not (results.get("seg_map_path") or flag.endswith("ignore_orientation"))
        if not turned and flag in ("color", "grayscale"):
            flag += "_ignore_orientation"
        pixels, content = results.pop("pixels", None), results.pop("content", None)
        if pixels is None:
            if content is None:
                content = read_bytes(path, self.backend_args)
            own = self.imdecode_backend == "cv2" and flag != "unchanged"
            if own and (self.channels != 3 or is_tiff(content) or is_deep(content)):
                pixels = read(content, path)
        if pixels is None:
            image = decode(content, path, flag, self.imdecode_backend)
        else:
            pixels = pixels.upright() if turned else pixels
            scaled = self.value_range is None and flag != "unchanged"
            if note := pixels.dark_note() if scaled else None:
                results["value_note"] = note
                if note not in warned_kinds:
                    warned_kinds.add(note)
                    warnings.warn(f"{path}: {note}", stacklevel=2)
            image = self._convert(pixels, path)
        results["img"] = image.astype(np.float32) if self.to_float32 else image
        results["img_shape"] = results["ori_shape"] = image.shape[:2]
        return results

    def _convert(self, pixels: Pixels, name: str) -> np.ndarray:
        if self.color_type == "unchanged":  # as mmcv reads files
            colors = pixels.values.shape[2] in (3, 4) and self.imdecode_backend != "tifffile"
            image = pixels.values
            return image[..., [2, 1, 0, 3][: image.shape[2]]] if colors else image
        try:
            image = pixels.fit(self.channels, self.value_range)
        except ValueError as error:
            raise UnreadableFileError(f"{name}: {error}") from error
        image = np.ascontiguousarray(image)
        image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if self.channels == 3 else image
        gray = self.color_type.startswith("grayscale")
        return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if gray else image
