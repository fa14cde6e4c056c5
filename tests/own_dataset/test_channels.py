"""The bands, ranges and statistics that `new_project` measures."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from mmseg_ext.own_dataset.channels import measure_images  # not rounded
from tests.images.test_files import CONTIG, DEEP, GRAY, NOISE, PAGES, RGB, U8, U16

REFLECTANCE = NOISE.astype(U16) * np.arange(1, 7, dtype=U16) * 10  # band i from 0 to 2550 i


def write(folder: Path, *images: np.ndarray, **options) -> list[Path]:
    paths = [folder / f"{i}.tif" for i in range(len(images))]
    for path, pixels in zip(paths, images, strict=True):
        tifffile.imwrite(path, pixels, **options)
    return paths


def test_bands_have_their_own_ranges_and_statistics(tmp_path):
    dead = REFLECTANCE.copy()
    dead[0, 0] = 65535  # a hot pixel
    found = measure_images(write(tmp_path, REFLECTANCE, dead, **CONTIG))
    assert found is not None and found.count == 6 and not found.colors
    assert found.value_range is not None
    for i, (low, high) in enumerate(found.value_range, 1):
        assert (type(low), type(high)) == (int, int)
        assert low <= 30 * i and 2500 * i < high < 2560 * i
    assert found.mean == pytest.approx(NOISE.mean((0, 1)).tolist(), abs=2)
    assert found.std == pytest.approx(NOISE.std((0, 1)).tolist(), abs=2)


def test_pixels_without_data_do_not_count(tmp_path):
    """A declared value, one that is far from all others, and NaN."""
    values = np.where(GRAY < 99, -9999, GRAY.astype(np.int16))  # bytes would wrap
    for tags in ([(42113, "s", 0, "-9999", True)], []):
        found = measure_images(write(tmp_path, values, extratags=tags))
        assert found is not None and (found.count, found.value_range) == (1, [(99, 255)])
    found = measure_images(write(tmp_path, np.where(GRAY < 99, np.nan, GRAY / 1000)))
    assert found is not None and found.value_range == [pytest.approx((0.099, 0.255), abs=1e-3)]
    found = measure_images(write(tmp_path, np.full((8, 8), 7, np.int16)))
    assert found is not None and found.value_range == [(7, 8)]


def test_photos_need_no_measuring(tmp_path):
    """8 bits, also with alpha or gray among colors, and 16 bits whose range is used."""
    for i, mode in enumerate(("RGB", "L", "P", "RGBA", "CMYK")):
        Image.fromarray(RGB).convert(mode).save(tmp_path / f"{i}.tif")
    Image.fromarray(NOISE[..., :4]).save(tmp_path / "a.png")
    Image.fromarray(RGB).save(tmp_path / "a.jpg")
    assert measure_images(sorted(tmp_path.iterdir())) is None
    assert measure_images(write(tmp_path, DEEP, photometric="rgb")) is None
    found = measure_images(write(tmp_path, DEEP >> 4, photometric="rgb"))
    assert found is not None and found.count == 3 and found.colors
    assert found.value_range is not None and np.ptp(found.value_range, axis=0).max() < 100
    assert found.value_range[0][1] in range(4000, 4096)


def test_bands_of_eight_bits_have_no_range(tmp_path):
    four = dict(photometric="rgb", extrasamples=["unspecified"])
    found = measure_images(write(tmp_path, NOISE[..., :4], **four))
    assert found is not None and (found.count, found.value_range, found.colors) == (4, None, True)
    assert found.mean == pytest.approx(NOISE[..., :4].mean((0, 1)).tolist(), abs=0.01)


SMOOTH = np.linspace(20, 250, 40 * 48).astype(U8).reshape(40, 48)  # such as near infrared


@pytest.mark.parametrize("suffix", ["tif", "png"])
def test_a_band_with_content_is_kept_where_files_call_it_alpha(suffix, tmp_path):
    """GDAL and PNG have no other name for a fourth band. Half of the pixels have no data."""
    infrared = np.where(np.arange(40)[:, None] < 24, 0, SMOOTH)
    Image.fromarray(np.dstack([RGB, infrared])).save(tmp_path / f"0.{suffix}")
    found = measure_images([tmp_path / f"0.{suffix}"])
    assert found is not None and (found.count, found.alpha, found.colors) == (4, (3,), True)
    assert found.value_range is None and found.mean[3] == pytest.approx(infrared.mean(), abs=0.01)


@pytest.mark.parametrize("suffix", ["tif", "png"])
@pytest.mark.parametrize("other", ["RGBA", "RGB"])
def test_alpha_of_cut_out_photos_is_no_band(suffix, other, tmp_path):
    """Its values are opaque or transparent but for soft edges, or some photos have none."""
    soft = np.full((40, 48), 255, U8)
    soft[:20], soft[20:28] = 0, SMOOTH[20:28]
    alpha = soft if other == "RGBA" else SMOOTH
    Image.fromarray(np.dstack([RGB, alpha])).save(tmp_path / f"0.{suffix}")
    Image.fromarray(np.dstack([RGB, soft])).convert(other).save(tmp_path / f"1.{suffix}")
    assert measure_images(sorted(tmp_path.iterdir())) is None


def test_images_of_different_kinds_are_named(tmp_path):
    paths = write(tmp_path, NOISE, NOISE[..., :2], **CONTIG)
    with pytest.raises(ValueError, match=rf"^{paths[0]}: has 6 bands, and {paths[1]} has 2; "):
        measure_images(paths)
    with pytest.raises(OSError, match=r"0\.tif: has 6 images"):
        measure_images(write(tmp_path, np.moveaxis(NOISE, 2, 0), **PAGES))
