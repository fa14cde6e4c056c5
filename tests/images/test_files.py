"""Images of every kind: the values that the file declares, or one line."""

import io
import struct
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps, PngImagePlugin

from mmseg_ext.datasets import CheckedLoadImage
from mmseg_ext.datasets import image_loading as module  # a process warns once for a kind of file
from mmseg_ext.errors import UnreadableFileError
from mmseg_ext.images.files import decode, image_files, orientation, read, read_photo
from mmseg_ext.images.values import (
    any_size,
    image_size,
    is_png_with_alpha,
    picture_pixels,
    read_page,
    read_pixels,
    tiff_file,
    tiff_images,
)
from mmseg_ext.images.values import turned as turned_values
from mmseg_ext.own_dataset.annotations.masks import read_mask
from tests.messages import raises_message, warns_message

U8, U16, F32 = np.uint8, np.uint16, np.float32
NOISE = np.random.RandomState(0).randint(0, 256, (40, 48, 6), dtype=U8)
RGB, GRAY, DEEP = NOISE[..., :3], NOISE[..., 0], NOISE[..., :3].astype(U16) * 257
SIGNED = NOISE.astype(np.int16) * 10 - 700
CONTIG = dict(photometric="minisblack", planarconfig="contig")
PLANES = dict(photometric="minisblack", planarconfig="separate")
LOSSLESS = [cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000]


def tiff(pixels: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, **options)
    return file.getvalue()


def picture(pixels: np.ndarray, kind: str, mode: str | None = None, **options) -> bytes:
    file, image = io.BytesIO(), Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, kind, **options)
    return file.getvalue()


def first(pixels: np.ndarray) -> np.ndarray:
    return np.moveaxis(pixels, 2, 0)


def packed(bits: int) -> bytes:
    """Return a TIFF whose values have `bits` bits; tifffile alone cannot write it."""
    strings = [format(value, f"0{bits}b") for value in GRAY.astype(int).ravel() << (bits - 8)]
    data = np.packbits(np.array([int(bit) for bit in "".join(strings)], U8))
    file = io.BytesIO(tiff(data.reshape(len(GRAY), -1), metadata=None))
    with tifffile.TiffFile(file, mode="r+") as opened:
        tags = opened.pages[0].tags
        tags["ImageWidth"].overwrite(GRAY.shape[1])
        tags["BitsPerSample"].overwrite(bits)
    return file.getvalue()


def gray_and_alpha_png() -> bytes:
    pixels = NOISE[..., :2].astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 48, 40, 16, 4, 0, 0, 0)), (b"IEND", b"")]
    parts.insert(1, (b"IDAT", zlib.compress(rows)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, data) for kind, data in parts)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum


PALETTE = np.random.RandomState(1).randint(0, 65536, (3, 256)).astype(U16)
PAGES = dict(photometric="minisblack")
# The file, and its pixels in the order of the bands; with `channels` and `value_range`.
DECLARED = {
    "8 bits": (tiff(RGB, photometric="rgb"), RGB),
    "16 bits": (tiff(DEEP, photometric="rgb"), RGB),
    "big-endian": (tiff(DEEP, photometric="rgb", byteorder=">"), RGB),
    "BigTIFF": (tiff(DEEP, photometric="rgb", bigtiff=True), RGB),
    "planes": (tiff(first(DEEP), photometric="rgb", planarconfig="separate"), RGB),
    "GDAL's bands": (tiff(DEEP, **CONTIG), RGB),
    "bands in planes": (tiff(first(RGB), **PLANES), RGB),
    "deflate": (tiff(DEEP, photometric="rgb", compression="zlib", predictor=True), RGB),
    "tiles": (tiff(RGB, photometric="rgb", tile=(16, 16), compression="zlib"), RGB),
    "LZW": (picture(RGB, "TIFF", compression="tiff_lzw"), RGB),
    "LZW, 16 bits": (picture(GRAY.astype(U16) * 257, "TIFF", compression="tiff_lzw"), GRAY),
    "JPEG 2000": (cv2.imencode(".jp2", DEEP[..., ::-1], LOSSLESS)[1].tobytes(), RGB),
    "portable map": (cv2.imencode(".pgm", DEEP[..., 0])[1].tobytes(), RGB[..., 0]),
    "gray": (tiff(GRAY), GRAY),
    "white is zero": (tiff(255 - GRAY, photometric="miniswhite"), GRAY),
    "1 bit": (tiff(GRAY > 99, photometric="minisblack"), np.where(GRAY > 99, U8(255), U8(0))),
    "fax": (picture(GRAY > 99, "TIFF", compression="group4"), np.where(GRAY > 99, 255, 0)),
    "10 bits": (packed(10), GRAY),
    "12 bits": (packed(12), GRAY),
    "14 bits": (packed(14), GRAY),
    "palette": (
        tiff(GRAY, photometric="palette", colormap=PALETTE),
        (PALETTE >> 8)[:, GRAY].transpose(1, 2, 0),
    ),
    "floats": (tiff(RGB.astype(F32) / 255, photometric="rgb"), RGB),
    "doubles": (tiff(GRAY / 255), GRAY),
    "half floats": (tiff((GRAY / 255).astype(np.float16)), GRAY),
    "12 bits in 16": (tiff(DEEP >> 4, photometric="rgb"), RGB, 3, (0, 4095)),
    "8 bits in 16": (tiff(RGB.astype(U16), photometric="rgb"), RGB, 3, (0, 255)),
    "signed": (tiff(SIGNED[..., :3], photometric="rgb"), RGB, 3, (-700, 1850)),
    "32 bits": (tiff(RGB.astype(np.uint32) * 1000, **CONTIG), RGB, 3, (0, 255000)),
    "floats with a range": (tiff(NOISE / 100 - 1, **CONTIG), NOISE, 6, (-1, 1.55)),
    "no number": (tiff(np.where(GRAY > 99, np.nan, 1.0)), np.where(GRAY > 99, 0, 255), 1, (0, 1)),
    "a range for each band": (
        tiff(NOISE[..., :2] * np.array([1, 10], U16), **CONTIG),
        *(NOISE[..., :2], 2, [(0, 255), (0, 2550)]),
    ),
    "a range leaves 8 bits": (tiff(RGB, photometric="rgb"), RGB, 3, (0, 4095)),
    "full range, gray": (tiff(GRAY.astype(U16) * 257), GRAY, 1, (0, 65535)),
    "one band": (tiff(NOISE[..., :1], **PAGES), GRAY, 1),
    "two bands": (tiff(NOISE[..., :2], **CONTIG), NOISE[..., :2], 2),
    "six bands": (tiff(first(NOISE), **PLANES), NOISE, 6),
    "channels of tifffile": (tiff(first(RGB), **PAGES, metadata={"axes": "CYX"}), RGB),
    "ImageJ's channels": (tiff(first(NOISE), imagej=True, metadata={"axes": "CYX"}), NOISE, 6),
    "OME's channels": (tiff(first(NOISE), ome=True, metadata={"axes": "CYX"}), NOISE, 6),
    "alpha": (tiff(NOISE[..., :4], photometric="rgb", extrasamples=["unassalpha"]), RGB),
    "alpha as a band": (
        tiff(NOISE[..., :4], photometric="rgb", extrasamples=["assocalpha"]),
        *(NOISE[..., :4], 4),
    ),
    "fourth band": (
        tiff(NOISE[..., :4], photometric="rgb", extrasamples=["unspecified"]),
        *(NOISE[..., :4], 4),
    ),
    "PNG, alpha": (picture(NOISE[..., :4], "PNG"), RGB),
    "PNG, alpha as a band": (picture(NOISE[..., :4], "PNG"), NOISE[..., :4], 4),
    "PNG, gray and alpha": (picture(NOISE[..., :2], "PNG"), NOISE[..., :2], 2),
    "PNG, gray and alpha, 16 bits": (gray_and_alpha_png(), GRAY),
    "PNG, 12 bits in 16": (
        cv2.imencode(".png", DEEP[..., ::-1] >> 4)[1].tobytes(),
        *(RGB, 3, (0, 4095)),
    ),
    "PNG, 16 bits": (cv2.imencode(".png", DEEP[..., ::-1])[1].tobytes(), RGB),
    "PNG, 1 bit": (picture(GRAY > 99, "PNG"), np.where(GRAY > 99, 255, 0), 1),
    "PNG, 16 bits, gray": (picture(GRAY.astype(U16) * 257, "PNG"), GRAY, 1),
    "PPM": (b"P6\n# 12 bits\n48 40\n4095\n" + (RGB.astype(U16) << 4).astype(">u2").tobytes(), RGB),
    "PGM": (b"P5 48 40 65535\n" + (GRAY.astype(">u2") * 257).tobytes(), GRAY, 1),
}


def load(data: bytes, channels: int = 3, value_range=None, **more) -> np.ndarray:
    loader = CheckedLoadImage(channels=channels, value_range=value_range)
    return loader.transform({"img_path": "x.tif", "content": data, **more})["img"]


@pytest.mark.parametrize("name", DECLARED)
def test_what_a_file_declares_arrives(name):
    """Red is first in the file, blue in what mmcv's loaders return."""
    given = DECLARED[name]
    data, expected, channels, value_range = (*given, *(3, None)[len(given) - 2 :])
    expected = np.atleast_3d(expected)
    if channels == 3:
        expected = np.broadcast_to(expected[..., ::-1], (40, 48, 3))
    found = load(data, channels, value_range)
    assert found.dtype == np.uint8 and np.array_equal(found, expected)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "YCbCr", "LAB"])
@pytest.mark.parametrize("compression", ["jpeg", "tiff_lzw", "raw"])
def test_colors_in_tiff_are_the_stock_ones(mode, compression):
    """JPEG in TIFF and color spaces as OpenCV, and so mmsegmentation, reads them."""
    data = picture(np.kron(RGB, np.ones((8, 8, 1), U8)), "TIFF", mode, compression=compression)
    expected = cv2.imdecode(np.frombuffer(data, U8), cv2.IMREAD_COLOR)
    assert np.array_equal(load(data), expected)


REFUSED = {
    "has int16 values from -700 to 1850, .* --value-range -700 1850 ": tiff(
        np.clip(SIGNED[..., :3], -700, 1850), photometric="rgb"
    ),
    "has float32 values from .* --value-range 0 255 ": tiff(RGB.astype(F32), photometric="rgb"),
    r"has float64 values .* --value-range 0\.25 3 ": tiff(np.array([[np.nan, 0.25], [np.inf, 3]])),
    "has uint32 values from .* --value-range 0 255 ": tiff(GRAY.astype(np.uint32)),
    # This image may have no black and no white pixel.
    "has float32 values from 20 to 230, .* --value-range 0 255 ": tiff(np.array([[20, 230]], F32)),
    "has int32 values from 300 to 900, .* 0 1023 ": tiff(np.array([[300, 900]], "i4")),
    "has values of complex64; save": tiff(GRAY.astype(np.complex64)),
    "has 2 bands, but the network takes 3; .*in_channels=2": tiff(NOISE[..., :2], **CONTIG),
    "has 4 bands, but the network takes 3; ": tiff(
        NOISE[..., :4], photometric="rgb", extrasamples=["unspecified"]
    ),
    "has 6 images; .* separate file .*'axes': 'CYX'": tiff(first(NOISE), **PAGES),
    "has 2 images; ": tiff(
        first(NOISE).reshape(2, 3, 40, 48), imagej=True, metadata={"axes": "ZCYX"}
    ),
    ".* of 4-bit integers requires the 'imagecodecs' package": packed(4),
    r"does not decode \(4 bytes\); get it again": b"II*\0",
    r"does not decode \(0 bytes\)": b"",
    "is HEIC or AVIF; save": b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic",
    "is DICOM; save": bytes(128) + b"DICM\2\0",
    "is a text, such as a web page; get": b"\n<!DOCTYPE html><html>",
    "is compressed; unpack": b"\x1f\x8b\x08\0",
    # Only the pixels without a value are outside of 0 to 1.
    "has float32 values from 0.25 to 0.5, .* --value-range 0 1 ": tiff(
        np.array([[np.nan, 0.25, 0.5]], F32)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_right_is_one_line(message):
    with pytest.raises(UnreadableFileError, match=f"^x.tif: {message}") as caught:
        load(REFUSED[message])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, dict(compression="zlib"), dict(tile=(16, 16))])
def test_truncated_tiffs_are_refused(options):
    data = tiff(np.kron(RGB, np.ones((4, 4, 1), U8)), photometric="rgb", **options)
    for share in (0.02, 0.3, 0.6, 0.99):
        with pytest.raises(UnreadableFileError, match=r"^x.tif: "):
            load(data[: int(len(data) * share)])


def test_overviews_and_masks_are_no_pages_and_other_images_are():
    """As GDAL writes them next to an image."""
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        writer.write(RGB, photometric="rgb", metadata=None)
        writer.write(RGB[::2, ::2], photometric="rgb", subfiletype=1, metadata=None)
        writer.write(GRAY > 0, subfiletype=4, metadata=None)
    assert np.array_equal(load(file.getvalue()), RGB[..., ::-1])
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        writer.write(RGB, photometric="rgb", metadata=None)
        writer.write(GRAY[:10, :30], metadata=None)
    with pytest.raises(UnreadableFileError, match=r"^x.tif: has 2 images; save each"):
        load(file.getvalue())


@pytest.mark.parametrize("tag", range(1, 9))
@pytest.mark.parametrize(
    ("mode", "compression"), [("RGB", "raw"), ("RGB", "tiff_lzw"), ("L", "raw")]
)
def test_tiffs_are_turned_unless_they_have_a_label_map(tag, mode, compression, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = tag
    data = picture(RGB, "TIFF", mode, compression=compression, exif=exif)
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    turned = np.asarray(turned.convert("RGB"))
    assert np.array_equal(load(data), turned[..., ::-1])
    stored = np.asarray(Image.fromarray(RGB).convert(mode).convert("RGB"))
    assert np.array_equal(load(data, seg_map_path="label.png"), stored[..., ::-1])
    image = picture_pixels(Image.open(io.BytesIO(data))).upright()
    assert np.array_equal(image.fit(3), turned)
    (tmp_path / "a.tif").write_bytes(data)
    assert image_size((tmp_path / "a.tif").open("rb")) == (48, 40)
    backends = ["cv2", "pillow"]  # which turn some of them
    if compression == "raw":
        backends.append("tifffile")
    for backend in backends:
        for color in ("color", "unchanged"):
            loader = CheckedLoadImage(color_type=color, imdecode_backend=backend)
            found = loader.transform({"img_path": "x", "content": data})["img"]
            labeled = {"img_path": "x", "content": data, "seg_map_path": "y"}
            again = turned_values(loader.transform(labeled)["img"], tag)
            assert found.shape[:2] == turned.shape[:2] and np.array_equal(found, again)


def test_sixteen_bits_that_use_few_warn_once_for_a_kind_of_file(monkeypatch):
    monkeypatch.setattr(module, "warned_kinds", set())
    dark, full = tiff(DEEP >> 4, photometric="rgb"), tiff(DEEP, photometric="rgb")
    with pytest.warns(UserWarning, match=r"^x.tif: uses 12 of 16 bits, .*--value-range 0 4095 "):
        load(dark)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (dark, full, tiff(np.zeros((8, 8), U16))):
            load(data)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_an_animation_is_its_first_frame_with_a_warning(tmp_path, monkeypatch, kind):
    """A JPEG's second image, such as a phone's map of brightness, is no frame."""
    monkeypatch.setattr(module, "warned_kinds", set())
    more = [Image.fromarray(image) for image in (255 - RGB, RGB // 2)]
    lossless = dict(lossless=True) if kind == "WEBP" else {}
    data = picture(RGB, kind, save_all=True, append_images=more, **lossless)
    with pytest.warns(UserWarning, match=r"^x.tif: has 3 frames, of which only the first is used"):
        image = load(data)
    (tmp_path / "mask").write_bytes(data)
    (note,) = read_mask(tmp_path / "mask").notes
    assert note.startswith("a mask has 3 frames")
    if kind == "GIF":  # of 256 colors; in a mask damaged later frames do not matter
        ends = range(2 * len(data) // 5, len(data), 5)  # behind the first frame
        cuts = [read_pixels(data[:end], indices=True).values for end in ends]
        assert all(np.array_equal(values, cuts[0]) for values in cuts)
    else:
        assert np.array_equal(image, RGB[..., ::-1])
    phone = picture(RGB, "MPO", save_all=True, append_images=more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(phone)
        load(picture(RGB, kind))


def test_other_options_of_mmcv_stay(tmp_path):
    """Raw values with `unchanged`, gray of 12 bits in files of 16, and float32."""
    data = tiff(SIGNED, **PLANES | dict(planarconfig="contig"))
    loader = CheckedLoadImage(color_type="unchanged", imdecode_backend="tifffile")
    assert np.array_equal(loader.transform({"img_path": "", "content": data})["img"], SIGNED)
    data = tiff(GRAY.astype(U16) << 4)
    loader = CheckedLoadImage(True, "grayscale", value_range=(0, 4095))
    found = loader.transform({"img_path": "", "content": data})["img"]
    assert found.dtype == np.float32 and np.array_equal(found, GRAY)
    for limits in ((5, 5), (9, 5), (5,), 5, (0, 1, 2), ((0, 1), (2, 3))):
        with pytest.raises(ValueError, match=r"value_range=.*: give"):
            CheckedLoadImage(channels=1, value_range=limits)


STACKS = {  # the shape of the values, how tifffile writes them, and the axes in the order of images
    "pages": ((4, 6, 8), dict(photometric="minisblack"), "NYX"),
    "white is zero": ((4, 6, 8), dict(photometric="miniswhite"), "NYX"),
    "two axes": ((2, 3, 6, 8), dict(photometric="minisblack"), "TZYX"),
    "colors": ((4, 6, 8, 3), dict(photometric="rgb"), "NYXS"),
    "color planes": ((4, 3, 6, 8), dict(photometric="rgb", planarconfig="separate"), "NSYX"),
    "ImageJ": ((2, 3, 4, 6, 8), dict(imagej=True, metadata={"axes": "TZCYX"}), "TZCYX"),
    "channels first": ((2, 3, 4, 6, 8), dict(ome=True, metadata={"axes": "TCZYX"}), "TCZYX"),
    "deflate": ((4, 6, 8), dict(photometric="minisblack", compression="zlib"), "NYX"),
    "one image": ((3, 6, 8), dict(photometric="minisblack", metadata={"axes": "CYX"}), "CYX"),
}


@pytest.mark.parametrize("kind", STACKS)
def test_pages_of_a_stack(kind, tmp_path):
    shape, options, axes = STACKS[kind]
    values = np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", values, **options)
    bands = [i for i, axis in enumerate(axes) if axis in "CS"] or [values.ndim]
    values = values[..., None] if bands == [values.ndim] else values
    expected = np.moveaxis(values, bands[0], -1)
    expected = expected.reshape(-1, *expected.shape[-3:])
    with tiff_file(tmp_path / "a.tif") as file:
        assert len(tiff_images(file)) == len(expected)
    for i, image in enumerate(expected):
        pixels = read_page(tmp_path / "a.tif", i)
        assert (pixels.values == (255 - image if kind == "white is zero" else image)).all()
        assert pixels.white == 255


def test_reduced_pages_are_no_images(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for side, kind in ((32, 0), (16, 1), (32, 0)):
            pixels = np.full((side, side), side + kind, np.uint8)
            file.write(pixels, photometric="minisblack", subfiletype=kind, metadata=None)
    with tiff_file(tmp_path / "a.tif") as file:
        assert [len(pages) for pages in tiff_images(file)] == [1, 1]
    assert read_page(tmp_path / "a.tif", 1).values.shape == (32, 32, 1)


@pytest.mark.filterwarnings("error")
def test_pillows_limit_is_not_for_chosen_files_and_stays(monkeypatch, tmp_path):
    """It refuses more than twice so many pixels, and warns from there on; also in threads."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    data, label = picture(NOISE[..., :4], "PNG"), picture(GRAY, "PNG")
    (tmp_path / "a.png").write_bytes(data)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: read(data, "a.png").values, range(40)))
    assert all(np.array_equal(values, NOISE[..., :4]) for values in found)
    assert np.array_equal(decode(label, "a.png", "unchanged", "pillow"), GRAY)
    photo = picture(RGB, "JPEG") + b"more"  # as some cameras write, so Pillow looks at it
    assert decode(photo, "a.jpg", "color", "cv2").shape == RGB.shape
    assert image_size(io.BytesIO(data)) == (48, 40)
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        assert orientation(picture(RGB, kind, exif=exif)) == 6
    with pytest.raises(UnreadableFileError):
        read(data[:200], "a.png")
    assert Image.MAX_IMAGE_PIXELS == 9


def test_the_limits_are_off_until_the_last_block_ends(monkeypatch):
    """Blocks of threads overlap."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    first, second = any_size(), any_size()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert Image.MAX_IMAGE_PIXELS is None
    with any_size():
        pass
    assert Image.MAX_IMAGE_PIXELS is None
    second.__exit__(None, None, None)
    assert Image.MAX_IMAGE_PIXELS == 9 and PngImagePlugin.MAX_TEXT_CHUNK == 2**20


@pytest.mark.parametrize("tag", [0, 9, 65535])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_unknown_orientations_are_upright(kind, tag):
    """As in viewers; some programs write 0."""
    exif = Image.Exif()
    exif[0x0112] = tag
    data = picture(RGB, kind, exif=exif)
    found = read(data, "a").upright()
    assert found.values.shape == RGB.shape and found.orientation == orientation(data) == 1
    assert picture_pixels(Image.open(io.BytesIO(data))).orientation == 1


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_only_exif_turns_photos(kind):
    """Pillow also reads XMP, which OpenCV, browsers and viewers leave out."""
    data = picture(RGB, kind, xmp=b'<x tiff:Orientation="6"/>')
    assert Image.open(io.BytesIO(data)).getexif()[0x0112] == 6
    assert read(data, "a").orientation == orientation(data) == 1


HEADER, END = 33, -12  # places in a PNG: before the pixels, and behind them


def turned_png(place: int, kind: str) -> bytes:
    """Return RGB as a PNG with orientation 6, in a chunk or a text of this kind."""
    exif, data = Image.Exif(), picture(RGB, "PNG")
    exif[0x0112] = 6
    tags = exif.tobytes()  # begins with Exif\0\0, which the chunk leaves out
    chunk = png_chunk(b"eXIf", tags[6:])
    if kind != "chunk":  # of ImageMagick
        text = b"\n%s\n%8d\n%s\n" % (kind.encode(), len(tags), tags.hex().encode())
        key = b"Raw profile type " + kind.encode() + b"\0\0"
        chunk = png_chunk(b"zTXt", key + zlib.compress(text))
    return data[:place] + chunk + data[place:]


@pytest.mark.parametrize("place", [HEADER, END])
@pytest.mark.parametrize("kind", ["chunk", "exif", "APP1"])
@pytest.mark.parametrize("backend", ["cv2", "pillow"])
def test_a_turned_png_is_turned_in_all_ways(place, kind, backend):
    """OpenCV and Pillow find only some of these tags."""
    data, turned = turned_png(place, kind), np.rot90(RGB, -1)  # clockwise
    assert orientation(data) == read(data, "a").orientation == 6
    assert np.array_equal(read(data, "a").upright().values, turned)
    assert np.array_equal(picture_pixels(Image.open(io.BytesIO(data))).upright().values, turned)
    for color in ("color", "unchanged", "grayscale"):
        loader = CheckedLoadImage(color_type=color, imdecode_backend=backend)
        found = loader.transform({"img_path": "x", "content": data})["img"]
        stored = loader.transform({"img_path": "x", "content": data, "seg_map_path": "y"})["img"]
        assert np.array_equal(found, np.rot90(stored, -1))
        assert color == "grayscale" or np.array_equal(stored, RGB[..., ::-1])


@pytest.mark.parametrize("place", [HEADER, END])
@pytest.mark.parametrize(
    "kind", [b"iCCPprofile\0\0", b"zTXtComment\0\0", b"iTXtXML:com.adobe.xmp\0\1\0\0\0"]
)
@pytest.mark.parametrize("bands", [3, 4])
def test_long_texts_and_profiles_are_passed_over(place, kind, bands):
    """Pillow refuses a million characters, to protect servers."""
    data, values = picture(NOISE[..., :bands], "PNG"), NOISE[..., :bands]
    chunk = png_chunk(kind[:4], kind[4:] + zlib.compress(b"x" * 2_000_000))
    data = data[:place] + chunk + data[place:]
    assert np.array_equal(read(data, "a").values, values)
    assert image_size(io.BytesIO(data)) == (48, 40) and orientation(data) == 1
    exif = turned_png(END, "exif")
    assert orientation(exif[:place] + chunk + exif[place:]) == 6


def test_damaged_tiffs_are_no_stacks():
    with raises_message(UnreadableFileError, "does not decode", where="a.tif"):
        read(b"II*\0hello", "a.tif")


def test_declared_white_of_photos_counts():
    """OpenCV reads such values as they are, so a photo of 7 bits would be dark."""
    pixels = RGB // 2
    data = b"P6 48 40 127\n" + pixels.tobytes()
    assert np.array_equal(load(data), np.rint(pixels / 127 * 255)[..., ::-1])


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12\n"


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.jpg"])
def test_a_pointer_of_git_lfs_is_named(name, tmp_path):
    (tmp_path / name).write_bytes(POINTER)
    for reader in (read_photo, lambda path: load(path.read_bytes())):
        with raises_message(UnreadableFileError, "Git LFS", todo="git lfs pull"):
            reader(tmp_path / name)


def test_photos_of_other_kinds_are_counted(tmp_path):
    for name in ("a.png", "b.HEIC", "b.json", "deep/c.heic", "deep/d.NEF"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with warns_message(UserWarning, "1 .heic", where=tmp_path, todo="PNG"):
        assert image_files(tmp_path) == [tmp_path / "a.png"]
    with warns_message(UserWarning, "2 .heic", "1 .nef", where=tmp_path):
        image_files(tmp_path, recursive=True)


def test_a_photo_has_all_that_its_file_declares(tmp_path):
    """Also its path, its page, and the tags of its place, which other readers need not open."""
    tags = [(33550, 12, 3, [0.5, 0.5, 0], True), (33922, 12, 6, [0, 0, 0, 100, 900, 0], True)]
    options = dict(photometric="rgb", metadata=None, extratags=[*tags, (274, 3, 1, 6, True)])
    (tmp_path / "a.tif").write_bytes(tiff(RGB, **options))
    photo = read_photo(tmp_path / "a.tif")
    assert photo.name == str(tmp_path / "a.tif") and photo.orientation == 6 and photo.colors
    assert [tag[0] for tag in photo.geotags] == [33550, 33922]
    assert photo.geotags[0][3] == (0.5, 0.5, 0) and np.array_equal(photo.values, RGB)
    assert read_photo(tmp_path / "a.tif", page=0).name == f"{tmp_path / 'a.tif'}: page 1"
    with raises_message(ValueError, "48x40", where=tmp_path / "a.tif", todo="--max-pixels 1920"):
        read_photo(tmp_path / "a.tif", most=1919)


@pytest.mark.parametrize(
    ("nodata", "missing"), [("nan", np.nan), ("0", 0), ("-9999", -9999), ("none", None)]
)
def test_values_without_data(nodata, missing):
    values = np.full((8, 9), 3, F32)
    values[2, 5] = np.float32(missing if missing is not None else 3)
    data = tiff(values, metadata=None, extratags=[(42113, 2, len(nodata) + 1, nodata, True)])
    without = read(data, "a.tif").without_data()
    assert without.sum() == (missing is not None) and without[2, 5] == (missing is not None)


def test_opencv_and_pillow_decode_the_same_photo(monkeypatch):
    """`demo/run_exported.py` may have no OpenCV."""
    files = [picture(RGB, kind) for kind in ("PNG", "BMP", "PPM", "WEBP")] + [picture(GRAY, "PNG")]
    with_opencv = [read(data, "a") for data in files]
    monkeypatch.setitem(sys.modules, "cv2", None)
    for data, photo in zip(files, with_opencv, strict=True):
        other = read(data, "a")
        assert other.values.shape == photo.values.shape and other.colors == photo.colors
        assert np.abs(other.values.astype(int) - photo.values).max() <= 3  # of lossy WebP


def test_a_truncated_photo_is_refused_by_the_decoder_itself():
    data = picture(np.kron(RGB, np.ones((8, 8, 1), U8)), "JPEG")
    with pytest.raises(OSError):  # OpenCV before 5 fills the rest, and Pillow then raises
        read_pixels(data[: len(data) // 2])


BROKEN = [b"Exif\0\0", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12", b"Exif\0\0no TIFF at all"]


@pytest.mark.parametrize("tags", BROKEN)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_tags_that_do_not_decode_are_passed_over(kind, tags):
    data = picture(RGB, kind, exif=tags)
    assert read(data, "a").orientation == orientation(data) == 1
    assert load(data).shape == RGB.shape


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (picture(NOISE[..., :4], "PNG"), True),
        (picture(NOISE[..., :2], "PNG"), True),
        (gray_and_alpha_png(), True),
        (picture(RGB, "PNG"), False),
        (picture(GRAY, "PNG"), False),
        (picture(RGB, "JPEG"), False),
        (b"P6 48 40 255\n" + b"\4\6" * 40, False),  # with these numbers at the place of the kind
    ],
)
def test_which_files_declare_alpha_in_a_png(data, expected):
    assert is_png_with_alpha(data) == expected
