"""Photos: one decoder for all kinds of files, and values as networks take them: 0 to 255.

`read_pixels` decodes a file into a `Photo`, which has everything that the file declares: values,
alpha, orientation, the place on a map, ... `files.read_photo` reads one from a path.

The module needs NumPy and Pillow, tifffile for TIFF, and OpenCV for color PNGs of 16 bits and for
TIFFs whose compression tifffile lacks. `demo/run_exported.py` uses it without this package.
"""

import contextlib
import io
import math
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin, UnidentifiedImageError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".tif", ".tiff", ".webp")
IMAGE_SUFFIXES += (".jp2", ".ppm", ".pgm")
# Photos that are left out of folders: of phones, the web, cameras, microscopes and scanners.
_OTHER_PHOTOS = ".heic .heif .avif .jxl .gif .mpo .dng .cr2 .cr3 .nef .arw .orf .raf .rw2 .czi .lif"
_OTHER_PHOTOS += " .nd2 .oib .vsi .svs .ndpi .mrxs .dcm .nii .gz .exr .hdr .psd"
EXIF_ORIENTATION = 0x0112
_GDAL_NODATA = 42113
# ModelPixelScale, ModelTiepoint, ModelTransformation, and the directory of keys with its values.
GEOTIFF_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two are BigTIFF
_REDUCED, _MASK = 1, 4  # bits of a page's NewSubfileType
_MINISWHITE, _MINISBLACK, _RGB, _PALETTE = range(4)  # photometric interpretations
_CONVERTED = (5, 6, 8)  # CMYK, YCbCr and CIELAB
_PLAIN_MODES = ("1", "L", "LA", "RGB", "RGBA", "F")  # Pillow's, whose values are those of the file
# Decoded by OpenCV, as in mmcv, or by Pillow if OpenCV is missing.
_BY_OPENCV = ("L", "P", "RGB", "CMYK", "YCbCr")
_ANIMATED = ("GIF", "PNG", "WEBP")  # a JPEG's further images, such as of a gain map, are no frames
# The first and last bytes of complete JPEG and PNG files.
_FRAMES = ((b"\xff\xd8", b"\xff\xd9"), (b"\x89PNG", b"IEND\xaeB`\x82"))
# ImageMagick's texts with EXIF, as hexadecimal digits behind a name and a length.
_PROFILES = ("Raw profile type exif", "Raw profile type APP1")
_EXIF_OF_PNG = (b"eXIf", *(name.encode() for name in _PROFILES))
# Such as P5 4 3 255: the kind, width, height and white.
_PNM = re.compile(rb"P([56])\s+(?:#.*\s+)*(\d+)\s+(?:#.*\s+)*(\d+)\s+(?:#.*\s+)*(\d+)\s")

# Pillow's limits before each block of `any_size` that runs; the first ones are the user's.
_limits: list[tuple] = []
_LOCK = threading.Lock()

ValueRange = Sequence[float] | Sequence[Sequence[float]]


@contextlib.contextmanager
def any_size() -> Iterator[None]:
    """Let Pillow open files of any size in this block, then restore its limits.

    They protect a server from strangers' files. The user chose these files. The last two are for
    texts and color profiles of PNGs.
    """
    png = PngImagePlugin
    with _LOCK:  # not while files are decoded, which threads do at the same time
        _limits.append((Image.MAX_IMAGE_PIXELS, png.MAX_TEXT_CHUNK, png.MAX_TEXT_MEMORY))
        Image.MAX_IMAGE_PIXELS = None
        png.MAX_TEXT_CHUNK = png.MAX_TEXT_MEMORY = sys.maxsize
    try:
        yield
    finally:
        with _LOCK:
            if len(_limits) == 1:  # the last block that ends
                Image.MAX_IMAGE_PIXELS, png.MAX_TEXT_CHUNK, png.MAX_TEXT_MEMORY = _limits[0]
            _limits.pop()


@dataclass(frozen=True)
class Photo:
    """A photo, or another image, as its file declares it."""

    values: np.ndarray  # (H, W, C) in the order of the file, such as red, green, blue
    # The largest value that the file's type allows, 1 for floats; None for signed and 32-bit
    # integers, which have no such value.
    white: float | None
    alpha: tuple[int, ...] = ()  # the channels that the file declares as alpha
    orientation: int = 1  # EXIF's, 1 to 8; `upright` turns the values
    missing: float | None = None  # the value of pixels without data, if the file declares one
    colors: bool = False  # whether the first three channels are declared as red, green and blue
    palette: np.ndarray | None = None  # RGBA (N, 4), if the values are indices
    geotags: tuple[tuple, ...] = ()  # the place on a map, as `extratags` of tifffile
    frames: int = 1  # of an animation; the values are those of the first one
    name: str = "image"  # its path and page, for messages

    def upright(self) -> "Photo":
        """Return the image turned as its orientation tells."""
        return replace(self, values=turned(self.values, self.orientation), orientation=1)

    def without_data(self) -> np.ndarray:
        """Return which pixels have the declared value of pixels without data, (H, W), bool."""
        if self.missing is None:
            return np.zeros(self.values.shape[:2], bool)
        if math.isnan(self.missing):  # which no value equals
            return (self.values != self.values).all(2)
        return (self.values == self.missing).all(2)

    def bands(self, channels: int = 0) -> np.ndarray:
        """Return the values without declared alpha, unless it is one of so many channels."""
        if not self.alpha or self.values.shape[2] == channels:
            return self.values
        return np.delete(self.values, self.alpha, axis=2)

    def fit(self, channels: int, value_range: ValueRange | None = None) -> np.ndarray:
        """Return the image as a network of so many channels takes it, (H, W, channels), uint8.

        Declared alpha is left out if the number of channels then fits, and gray is repeated for
        three. `value_range` has the values that become 0 and 255, or such a pair for each channel;
        without it they are 0 and `white`. It leaves values of 8 bits as they are.

        Raises:
            ValueError: if the channels do not fit, or the values need a range.
        """
        count = self.values.shape[2]
        values = self.bands(channels)
        if values.shape[2] == 1 and channels == 3:
            values = np.repeat(values, 3, axis=2)
        if values.shape[2] != channels:
            raise ValueError(
                f"has {count} bands, but the network takes {channels}; give it images like those "
                f"that it was trained with, or train with in_channels={count} (docs/channels.md)"
            )
        return _to_bytes(values, self.white, value_range)

    def note(self, value_range: ValueRange | None) -> str | None:
        """Return what the labels of the image do not show: it is dark, or has more frames."""
        notes = [self.frames_note(), self.dark_note() if value_range is None else None]
        return "; ".join(filter(None, notes)) or None

    def frames_note(self) -> str | None:
        """Return a note if there are further frames."""
        if self.frames == 1:
            return None
        return f"has {self.frames} frames, of which only the first is used; save each as an image"

    def dark_note(self) -> str | None:
        """Return a note if values of 16 bits use at most 14, as of scientific cameras."""
        if self.white != 0xFFFF:
            return None
        bits = int(self.bands().max()).bit_length()
        if not 0 < bits <= 14:
            return None
        high = 2 ** max(bits, 8) - 1
        return f"uses {bits} of 16 bits, so it is dark; {_hint(0, high)}"


def turned(values: np.ndarray, orientation: int) -> np.ndarray:
    """Return values (H, W, ...) turned upright by EXIF's orientation, 1 to 8."""
    if orientation >= 5:
        values = values.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        values = values[::-1]
    if orientation in (2, 3, 6, 7):
        values = values[:, ::-1]
    return values


def exchange_red_and_blue(values: np.ndarray) -> np.ndarray:
    """Exchange red and blue in values (H, W, C) of colors, because OpenCV begins with blue."""
    if values.shape[2] == 3:
        return values[..., ::-1]  # needs no copy
    return values[..., [2, 1, 0, 3]] if values.shape[2] == 4 else values


def _hint(low: float, high: float) -> str:
    high = high if high > low else low + 1  # of an image of one value
    return (
        f"if all images are like it, set --value-range {low:g} {high:g} (in Python and in a "
        f"config's CheckedLoadImage: value_range=({low:g}, {high:g}))"
    )


def declared(values: np.ndarray, bits: int | None = None, **more: Any) -> Photo:
    """Return `Photo` of an array (H, W) or (H, W, C), whose values have so many bits.

    Raises:
        ValueError: for values that are neither integers nor floats.
    """
    kind, bits = values.dtype.kind, bits or 8 * values.dtype.itemsize
    if kind not in "buif":
        raise ValueError(f"has values of {values.dtype}; save it as integers or floats")
    if values.ndim == 2:
        values = values[..., None]
    white = None
    if kind in "bf":
        white = 1
    elif kind == "u" and bits <= 16:
        white = 2**bits - 1
    return Photo(values, white, **more)


def _to_bytes(values: np.ndarray, white: float | None, limits: ValueRange | None) -> np.ndarray:
    """Map (H, W, C) to 0 to 255 by the limits; see `Photo.fit`."""
    floats = values.dtype.kind == "f"
    if white == 255:
        return values.astype(np.uint8, copy=False)
    if white is not None and white < 255 and not floats:
        limits = (0, white)
    if limits is None:
        known = values[np.isfinite(values)]
        low, high = 0, 1
        if known.size:
            low, high = known.min(), known.max()
        outside = known.size < values.size or low < 0 or high > 1
        if white is None or (floats and outside):
            found = f"has {values.dtype} values from {low:g} to {high:g}"
            if floats and low >= 0 and high <= 1:
                low, high = 0, 1  # only because of pixels without a value
            elif low >= 0 and (known == known.round()).all():  # black may not be in this image
                low, high = 0, 2 ** max(8, int(high).bit_length()) - 1
            unknown = "and it is unknown which are black and white"
            raise ValueError(f"{found}, {unknown}; {_hint(low, high)}")
        limits = (0, white)
    out = np.empty(values.shape, np.uint8)
    for band, (low, high) in enumerate(range_of_bands(limits, values.shape[2])):
        source = values[..., band]
        if source.dtype == np.uint16:  # a table of all values is faster
            out[..., band] = _scale(np.arange(0x10000), low, high, floats)[source]
        else:
            out[..., band] = _scale(source.astype(float), low, high, floats)
    return out


def range_of_bands(limits: ValueRange, channels: int) -> np.ndarray:
    """Return the values of each band that become 0 and 255, (channels, 2).

    Raises:
        ValueError: unless there is a pair of finite numbers, low and high, or one for each band.
    """
    try:
        pairs = np.array(limits, dtype=float).reshape(-1, 2)
    except (TypeError, ValueError):  # texts, or an odd count
        pairs = np.empty((0, 2))
    is_finite = np.isfinite(pairs).all()
    if len(pairs) not in (1, channels) or not is_finite or not (pairs[:, 0] < pairs[:, 1]).all():
        raise ValueError(
            f"value_range={limits}: give (low, high), or such a pair for each of the {channels} "
            "bands"
        )
    return np.broadcast_to(pairs, (channels, 2))


def _scale(values: np.ndarray, low: float, high: float, floats: bool) -> np.ndarray:
    """Map values from low to high to 0 to 255, uint8."""
    if floats or high - low < 255:
        values = np.rint((values - low) * 255 / (high - low))
    else:  # equal shares of integers, so 0 to 4095 is a shift by four bits
        values = np.floor((values - low) * 256 / (high - low + 1))
    return np.nan_to_num(values.clip(0, 255)).astype(np.uint8)


def is_tiff(data: bytes) -> bool:
    return data[:4] in _TIFF


def is_deep(data: bytes) -> bool:
    """Return whether a PNG, PPM or PGM has more than 8 bits, or declares another white than 255."""
    if data[:4] == b"\x89PNG":
        return data[24:25] == b"\x10"
    match = _PNM.match(data)
    return match is not None and int(match[4]) != 255


def is_png_with_alpha(data: bytes) -> bool:
    return data[:4] == b"\x89PNG" and data[25:26] in (b"\4", b"\6")  # with gray or colors


def image_size(file: Any) -> tuple[int, int]:
    """Return width and height of the image in an open file; only its header is read.

    Raises:
        Exception: of a decoder, if it cannot read the header.
    """
    tiff = is_tiff(file.read(4))
    file.seek(0)
    if tiff:  # Pillow opens few kinds
        with tiff_file(file) as found:
            page = found.pages[0]
            return page.imagewidth, page.imagelength
    with any_size():
        return Image.open(file).size


def other_photos(files: Iterable[Path]) -> str:
    """Return a note on the photos among files that are not read, or nothing."""
    counts = Counter(file.suffix.lower() for file in files)
    found = [f"{counts[suffix]} {suffix}" for suffix in _OTHER_PHOTOS.split() if counts[suffix]]
    return f"left out: {', '.join(found)}; save them as PNG, JPEG or TIFF" if found else ""


def is_complete(data: bytes) -> bool:
    """Return whether a JPEG or a PNG ends as these do; for other kinds this is not known."""
    for start, end in _FRAMES:
        if data.startswith(start):
            return data.endswith(end)
    return True


def require_end(data: bytes) -> None:
    """Raise an error of Pillow for a truncated JPEG or PNG, which OpenCV fills with gray."""
    if not is_complete(data):  # some cameras write bytes after the image, which Pillow accepts
        with any_size():
            Image.open(io.BytesIO(data)).load()


def read_pixels(data: bytes, indices: bool = False) -> Photo:
    """Return the image in the bytes of a file; with `indices` a palette is not applied.

    Raises:
        ValueError: for a TIFF that has several images or an unknown layout.
        Exception: of a decoder, for damaged files.
    """
    if not data:
        raise OSError("is empty")
    if is_tiff(data):
        return _read_tiff(data, indices)
    if (match := _PNM.match(data)) and is_deep(data):
        # Pillow stretches the values to 255, as the classes 0 to 2 of a mask.
        width, height, white = map(int, match.groups()[1:])
        bands = {b"5": 1, b"6": 3}[match[1]]
        kind = ">u2" if white > 255 else "u1"
        values = np.frombuffer(data, kind, height * width * bands, match.end())
        return Photo(values.astype(kind[-2:]).reshape(height, width, bands), white)
    image = None
    with any_size(), contextlib.suppress(UnidentifiedImageError):
        image = Image.open(io.BytesIO(data))  # reads the header
    mode, frames = "RGB", 1  # OpenCV reads more kinds than Pillow
    if image is not None:
        mode = image.mode
        if image.format in _ANIMATED:
            with contextlib.suppress(Exception):  # later frames can be damaged
                frames = getattr(image, "n_frames", 1)
    is_mask = mode == "P" and indices
    is_transparent = image is not None and "transparency" in image.info
    if mode in _BY_OPENCV and not (is_mask or is_transparent or is_deep(data)):
        with contextlib.suppress(ImportError):
            import cv2

            kind = cv2.IMREAD_GRAYSCALE if mode == "L" else cv2.IMREAD_COLOR
            kind |= cv2.IMREAD_IGNORE_ORIENTATION
            bgr: Any = cv2.imdecode(np.frombuffer(data, np.uint8), kind)
            if bgr is None:
                raise OSError("does not decode")
            require_end(data)
            tag = 1 if image is None else exif_orientation(image, data)
            more = dict(orientation=tag, colors=mode != "L", frames=frames)
            return declared(exchange_red_and_blue(np.atleast_3d(bgr)), **more)
    if image is None:
        raise OSError("does not decode")
    photo = replace(picture_pixels(image, indices), frames=frames)
    if not is_deep(data) or photo.values.dtype == np.uint16:
        return photo
    import cv2  # because Pillow reads color PNGs with 8 bits

    values: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    values = exchange_red_and_blue(values)
    if data[25] == 4:  # gray and alpha
        values, photo = values[..., 2:], replace(photo, alpha=(1,))
    return replace(photo, values=values, white=0xFFFF)


def orientation_in(tags: Mapping[int, Any]) -> int:
    """Return EXIF's orientation in tags, 1 to 8; 1 for other values, which viewers ignore."""
    tag: Any = tags.get(EXIF_ORIENTATION)
    return int(tag) if tag in range(1, 9) else 1


def exif_orientation(image: Image.Image, data: bytes | None = None) -> int:
    """Return the EXIF orientation of a Pillow image, 1 to 8, without looking at its XMP.

    Tags that do not decode have none. With the bytes of its file, a PNG is decoded only if it has
    tags, which can follow its pixels.
    """
    with contextlib.suppress(Exception), any_size():  # SyntaxError, struct.error, ValueError, ...
        if image.format == "TIFF":
            return orientation_in(image.getexif())
        may_follow = data is None or any(key in data for key in _EXIF_OF_PNG)
        if image.format == "PNG" and "exif" not in image.info and may_follow:
            image.load()
        profile = image.info.get("exif")
        for name in _PROFILES:
            if profile is None and name in image.info:
                profile = bytes.fromhex("".join(image.info[name].split("\n")[3:]))
        tags = Image.Exif()
        tags.load(profile or b"")
        return orientation_in(tags)
    return 1


def picture_pixels(image: Image.Image, indices: bool = False) -> Photo:
    """Return the pixels of a Pillow image; palettes and other color spaces become RGB."""
    with any_size():
        image.load()  # turns TIFFs
    tag, palette = exif_orientation(image), None
    transparent = "transparency" in image.info  # a color, a value or an index
    if image.mode == "P" and indices:
        image.apply_transparency()
        known = np.array(image.getpalette("RGBA"), np.uint8).reshape(-1, 4)
        palette = np.full((256, 4), 255, np.uint8)  # a file can lack the color of an index
        palette[: len(known)] = known
    elif image.mode not in _PLAIN_MODES and image.mode[0] != "I":
        has_alpha = image.mode == "PA" or (image.mode == "P" and transparent)
        image = image.convert("RGBA" if has_alpha else "RGB")
    elif transparent and image.mode == "RGB":
        image = image.convert("RGBA")
    elif transparent and image.mode in ("1", "L"):
        image = image.convert("LA")
    values = np.asarray(image)
    kind = values.dtype.newbyteorder("=")
    if image.mode == "I" and image.format == "PNG":  # of 16 bits, in Pillow before 11.3
        kind = np.dtype(np.uint16)
    more: dict[str, Any] = dict(orientation=tag, palette=palette)
    more["alpha"] = (values.shape[2] - 1,) if image.mode in ("LA", "RGBA") else ()
    more["colors"] = image.mode in ("RGB", "RGBA")
    return declared(values.astype(kind), **more)


def _read_tiff(data: bytes, indices: bool) -> Photo:
    with tiff_file(io.BytesIO(data)) as file:
        images = tiff_images(file)
        if not images:
            raise OSError("has no image")
        if len(images) != 1:
            raise ValueError(
                f"has {len(images)} images; save each image in a separate file (image_demo --pages "
                "segments each), or channels with tifffile.imwrite(..., metadata={'axes': 'CYX'})"
            )
        try:
            return _tiff_pixels(images[0], indices)
        except Exception:  # without imagecodecs tifffile lacks some compressions
            found = _by_opencv(data, images[0], indices)
            if found is None:
                raise
            return found


def tiff_file(file: Any) -> Any:
    """Return an open TIFF; `tiff_images` has its images."""
    try:
        import tifffile
    except ImportError as error:
        raise ValueError("is a TIFF, which needs tifffile; pip install tifffile") from error
    return tifffile.TiffFile(file)


def tiff_images(file: Any) -> list[list[Any]]:
    """Return the images of a TIFF, each as its pages: one, or one for each channel.

    Raises:
        ValueError: for a stack in a file that has no page for each image.
    """
    images = []
    for series in file.series:
        if series.keyframe.subfiletype & (_REDUCED | _MASK):
            continue
        axes, sizes, pages = [], [], series.pages
        for axis, size in zip(series.axes, series.shape, strict=True):
            if axis not in series.keyframe.axes:  # of a page
                axes.append(axis)
                sizes.append(size)
        if math.prod(sizes) != len(pages) or None in pages:
            raise ValueError(f"has {len(pages)} pages for {sizes} images; save it as a plain stack")
        numbers = np.arange(len(pages)).reshape(*sizes, 1)
        if "C" in axes:
            numbers = np.moveaxis(numbers, axes.index("C"), -1)
        for channels in numbers.reshape(-1, numbers.shape[-1]):
            images.append([pages[i] for i in channels])
    return sorted(images, key=lambda pages: pages[0].index)  # a series has pages of one size


def read_page(path: Any, number: int) -> Photo:
    """Return an image of a stack, by its number from 0 in `tiff_images`.

    `path` is also an open file.

    Raises:
        ValueError: for an unknown layout, and for a number that the stack does not have.
        Exception: of a decoder, for damaged files.
    """
    with tiff_file(path) as file:
        images = tiff_images(file)
        if not 0 <= number < len(images):
            raise ValueError(f"{path}: has {len(images)} pages, from 0 on, but none is {number}")
        return _tiff_pixels(images[number], False)


def _tiff_pixels(pages: Sequence[Any], indices: bool) -> Photo:
    """Return an image of a TIFF, whose bands can be in a page each."""
    page = pages[0].keyframe
    if page.photometric > _PALETTE:
        space = getattr(page.photometric, "name", page.photometric)
        raise ValueError(f"has the color space {space}; save it as RGB")
    height_and_width = [page.axes.index("Y"), page.axes.index("X")]
    values = np.dstack([np.moveaxis(part.asarray(), height_and_width, (0, 1)) for part in pages])
    more = declarations(pages)
    if page.photometric == _MINISWHITE and values.dtype.kind == "b":
        values = ~values
    elif page.photometric == _MINISWHITE and values.dtype.kind == "u":
        values = 2**page.bitspersample - 1 - values
    if page.photometric == _PALETTE:
        colors = page.colormap.T  # (values, 3)
        if colors.max() > 255:
            colors = colors >> 8
        colors = colors.astype(np.uint8)
        if not indices:
            return declared(colors[values[..., 0]], **more)
        more["palette"] = np.insert(colors, 3, 255, axis=1)
    return declared(values, page.bitspersample, **more)


def declarations(pages: Sequence[Any]) -> dict[str, Any]:
    """Return what the tags of an image in a TIFF declare, as arguments of `Photo`."""
    page = pages[0].keyframe
    tags = {tag.code: tag.value for tag in page.tags}
    more: dict[str, Any] = {"orientation": orientation_in(tags)}
    more["colors"] = page.photometric in (_RGB, _PALETTE, *_CONVERTED)
    with contextlib.suppress(ValueError):
        more["missing"] = float(str(tags.get(_GDAL_NODATA, "")).strip("\0 "))
    found = [page.tags[code] for code in GEOTIFF_TAGS if code in tags]
    more["geotags"] = tuple((tag.code, tag.dtype, tag.count, tag.value, True) for tag in found)
    if len(pages) == 1:
        extra = enumerate(page.extrasamples, page.samplesperpixel - len(page.extrasamples))
        more["alpha"] = tuple(i for i, kind in extra if kind in (1, 2))
    return more


def upright_tiff(data: bytes) -> bytes:
    """Return a TIFF without its orientation, by which OpenCV and Pillow turn some images."""
    tag = None
    with contextlib.suppress(Exception), tiff_file(io.BytesIO(data)) as file:
        tag = file.pages[0].tags.get(EXIF_ORIENTATION)
    if tag is None:
        return data
    one = b"\0\1" if data[:1] == b"M" else b"\1\0"  # in the order of the file's bytes
    return data[: tag.valueoffset] + one + data[tag.valueoffset + 2 :]


def _by_opencv(data: bytes, pages: Sequence[Any], indices: bool) -> Photo | None:
    """Return a TIFF's image if OpenCV or Pillow decodes it as declared, or else None.

    It decodes what needs imagecodecs otherwise: LZW, JPEG, fax, and 10, 12 and 14 bits. It converts
    CMYK, YCbCr and CIELAB to RGB.
    """
    import cv2

    page = pages[0].keyframe
    if indices and page.photometric == _PALETTE:  # OpenCV applies the palette
        with any_size():
            image = Image.open(io.BytesIO(data))
        return picture_pixels(image, indices)
    bits, samples = page.bitspersample, page.samplesperpixel
    kinds = {_MINISBLACK: (1,), _MINISWHITE: (1,), _RGB: (3, 4), _PALETTE: (1,)}
    converted = page.photometric in _CONVERTED
    # Samples in planes and extra samples of gray images are read wrongly.
    plain = page.planarconfig == 1 and samples in kinds.get(page.photometric, ())
    plain = plain and (bits <= 8 or page.photometric in (_MINISBLACK, _RGB))
    if page.index != 0 or len(pages) > 1 or not (plain or (converted and bits == 8)):
        return None
    flag = cv2.IMREAD_COLOR if converted else cv2.IMREAD_UNCHANGED
    values: Any = cv2.imdecode(np.frombuffer(upright_tiff(data), np.uint8), flag)
    if values is None or values.shape[:2] != (page.imagelength, page.imagewidth):
        return None
    if values.dtype == np.uint16 and bits < 16:
        values = values >> (16 - bits)
    values = exchange_red_and_blue(np.atleast_3d(values))
    return declared(values, bits if values.dtype == np.uint16 else None, **declarations(pages))
