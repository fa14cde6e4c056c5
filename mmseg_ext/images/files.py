"""Image files: finding, naming and reading them, and one error for a file that does not decode.

`read` decodes any image, by `values.read_pixels`, and `read_photo` one from its path. `decode`
calls mmcv, for label maps and for loaders whose config chooses how mmcv reads. Decoders raise a
different exception for each kind of damage, OpenCV returns None, and its older versions fill the
missing part of a truncated JPEG with gray.
"""

import codecs
import contextlib
import io
import os
import re
import unicodedata
import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import mmcv
import numpy as np
from mmengine import fileio
from PIL import Image

from mmseg_ext.errors import UnreadableFileError, one_line, pointer_problem
from mmseg_ext.images.values import (
    IMAGE_SUFFIXES,
    Photo,
    any_size,
    declarations,
    exif_orientation,
    image_size,
    is_complete,
    is_tiff,
    other_photos,
    read_page,
    read_pixels,
    require_end,
    tiff_file,
    upright_tiff,
)

# Measured when a photo is segmented: the image as decoded, in RGB and with the colors of the
# classes, its labels and the picture that is written.
BYTES_PER_PIXEL = 17
# How files of other kinds begin, which can have names of images, and what to do.
_OTHER_KINDS = (
    (re.compile(rb".{4}ftyp(hei|hev|mif|msf|avi)", re.DOTALL), "is HEIC or AVIF; save it as PNG"),
    (re.compile(rb".{128}DICM", re.DOTALL), "is DICOM; save its pixels as TIFF"),
    (re.compile(rb"\s*[<{]"), "is a text, such as a web page; get the image again"),
    (re.compile(rb"\x1f\x8b|PK\x03\x04"), "is compressed; unpack it"),
)


def image_files(path: Path, recursive: bool = False) -> list[Path]:
    """Return the file at `path`, or the images of a folder and, on request, of its subfolders.

    A warning counts the photos of other kinds, such as HEIC.
    """
    if path.is_file():
        return [path]
    found = files_below(path) if recursive else sorted(filter(Path.is_file, path.glob("[!.]*")))
    if note := other_photos(found):
        warnings.warn(f"{path}: {note}", stacklevel=2)
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
    return sorted(filter(Path.is_file, found))


def comparable(text: str) -> str:
    """Return a name for comparisons in which case and form in Unicode do not count.

    macOS writes é as two characters, and Windows finds A.JPG for a.jpg.
    """
    return unicodedata.normalize("NFC", text).casefold()


def same_name(text: str, names: Collection[str]) -> str:
    """Return the name that equals a text, or the only name that equals it in another case.

    Otherwise return the text.
    """
    if text in names:
        return text
    found = [name for name in names if comparable(name) == comparable(text)]
    return found[0] if len(found) == 1 else text


def read_photo(path: Path, page: int | None = None, most: int | None = None) -> Photo:
    """Return the photo at `path`, which is opened once.

    Args:
        page: number of the image in a TIFF stack, from 0, as in `values.tiff_images`.
        most: pixels that a photo may have.

    Raises:
        UnreadableFileError: for a damaged file, or a TIFF that cannot be read.
        ValueError: for a photo of more pixels, which is not decoded.
        OSError: if the file cannot be opened.
    """
    name = str(path) if page is None else f"{path}: page {page + 1}"
    with path.open("rb") as file:
        try:
            width, height = image_size(file)
        except Exception as error:  # of a decoder
            file.seek(0)
            raise _damage(file.read(), name) from error
        if most is not None and width * height > most:
            memory = f"needs {width * height * BYTES_PER_PIXEL / 2**30:.1f} GiB or more"
            allow = f"allow it with --max-pixels {width * height}"
            raise ValueError(f"{path}: has {width}x{height} pixels and {memory}; {allow}")
        file.seek(0)
        if page is None:
            return read(file.read(), name)
        try:
            return replace(read_page(file, page), name=name)
        except Exception as error:  # of a decoder
            raise UnreadableFileError(f"{name}: {one_line(error)}") from error


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


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with its mark, which Windows also writes.

    Raises:
        UnreadableFileError: if it cannot be read.
        ValueError: if it has another encoding.
    """
    data = read_bytes(str(path))
    is_wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not in UTF-8 ({error}); save it in UTF-8") from error


def decode(data: bytes, path: str, flag: str, backend: str) -> np.ndarray:
    """Return the image in `data` like `mmcv.imfrombytes(data, flag=flag, backend=backend)`.

    It is not turned by its orientation, which decoders find at different places.

    Raises:
        UnreadableFileError: if `data`, read from `path`, is empty, truncated or not an image.
    """
    if flag in ("color", "grayscale") and backend in ("cv2", "pillow"):
        flag += "_ignore_orientation"
    try:
        if is_tiff(data):
            data = upright_tiff(data)
        with contextlib.nullcontext() if backend == "cv2" else any_size():
            image = mmcv.imfrombytes(data, flag=flag, backend=backend)
        require_end(data)
    except Exception:  # decoders raise anything: cv2.error, SyntaxError, struct.error
        image = None
    if image is None:
        raise _damage(data, path)
    return image


def read(data: bytes, path: str, indices: bool = False) -> Photo:
    """Return the image in `data` as the file declares it; see `values.read_pixels`.

    Raises:
        UnreadableFileError: if `data`, read from `path`, is damaged, or a TIFF that cannot be read.
    """
    try:
        return replace(read_pixels(data, indices), name=path)
    except Exception as error:  # of a decoder, or about a TIFF
        if is_tiff(data) and isinstance(error, ValueError | NotImplementedError):
            raise UnreadableFileError(f"{path}: {one_line(error)}") from error
        raise _damage(data, path) from error


def _damage(data: bytes, path: str) -> UnreadableFileError:
    """Return the error for bytes that no decoder takes, with what to do."""
    problem = pointer_problem(data)
    for start, kind in _OTHER_KINDS:
        if not problem and start.match(data):
            problem = kind
    if not problem:
        what = "does not decode" if is_complete(data) else "is truncated"
        problem = f"{what} ({len(data)} bytes); get it again, or leave it out"
    return UnreadableFileError(f"{path}: {problem}")


def orientation(data: bytes) -> int:
    """Return the EXIF orientation of an image, 1 to 8; 1 (upright) if it has none."""
    try:
        if is_tiff(data):
            with tiff_file(io.BytesIO(data)) as file:
                return declarations([file.pages[0]])["orientation"]
        with any_size():
            return exif_orientation(Image.open(io.BytesIO(data)), data)
    except Exception:  # `decode` reports the damage
        return 1
