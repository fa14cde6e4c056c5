"""Places on maps, with the values that GDAL reads from the same tags."""

import json
import warnings

import numpy as np
import pytest
import tifffile

from mmseg_ext.inference.georeference import read_georeference, write_geotiff
from mmseg_ext.inference.objects import find_objects, geojson
from tests.messages import check_message

SCALE, TIE, MATRIX, KEYS = 33550, 33922, 34264, 34735
ASCII = (34737, 2, 0, "WGS 84 / UTM zone 32N|", True)
CORNER = [0.0, 0, 0, 500000, 5800000, 0]


def doubles(code, *values):
    return (code, 12, len(values), [float(value) for value in values], True)


def keys(*rows):
    values = np.array([(1, 1, 0, len(rows)), *rows]).ravel().tolist()
    return (KEYS, 3, len(values), values, True)


def projected(code, *more):
    return keys((1024, 0, 1, 1), *more, (3072, 0, 1, code))


KINDS = {  # tags, the code, and where the corner of column 3 and row 2 is
    "scale": ([doubles(SCALE, 0.5, 0.25, 0), doubles(TIE, *CORNER), projected(32632), ASCII],)
    + (32632, (500001.5, 5799999.5)),
    "another tie point": (
        [doubles(SCALE, 2, 2, 0), doubles(TIE, 3, 2, 0, 70, 80, 0), projected(2154)],
        2154,
        (70, 80),
    ),
    "pixel is point": (
        [doubles(SCALE, 1, 1, 0), doubles(TIE, *CORNER), projected(32632, (1025, 0, 1, 2))],
        32632,
        (500002.5, 5799998.5),
    ),
    "rotated": (
        [doubles(MATRIX, 0, 2, 0, 10, -2, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 1), projected(25832)],
        25832,
        (14, 14),
    ),
    "degrees": (
        [
            doubles(SCALE, 0.5, 0.5, 0),
            doubles(TIE, 0, 0, 0, 9, 52, 0),
            keys((1024, 0, 1, 2), (2048, 0, 1, 4326)),
        ],
        4326,
        (10.5, 51),
    ),
    "own system": (
        [doubles(SCALE, 1, 1, 0), doubles(TIE, 0, 0, 0, 7, 9, 0), projected(32767)],
        None,
        (10, 7),
    ),
}


def write(path, tags, **more):
    tifffile.imwrite(path, np.zeros((8, 9), np.uint8), extratags=tags, metadata=None, **more)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_label_maps_and_polygons_have_the_place_of_the_photo(kind, tmp_path):
    tags, code, corner = KINDS[kind]
    place = read_georeference(write(tmp_path / "a.tif", tags))
    assert place.epsg == code
    assert place.on_map(np.array([[3, 2]])).tolist() == [list(corner)]
    labels = np.zeros((300, 9), np.uint16)
    labels[2, 3] = 300
    write_geotiff(labels, place, tmp_path / "out/b.tif")
    assert (tifffile.imread(tmp_path / "out/b.tif") == labels).all()
    copied = read_georeference(tmp_path / "out/b.tif")
    assert copied.tags == place.tags and copied.epsg == code
    content = json.loads(json.dumps(geojson(find_objects(labels, 300, "pixel"), place=place)))
    (feature,) = content["features"]
    (ring,) = feature["geometry"]["coordinates"]
    assert list(corner) in ring and feature["properties"]["box"] == [3, 2, 1, 1]
    if code is None:
        assert "crs" not in content
    elif code == 4326:  # GDAL's name for longitude before latitude
        assert content["crs"]["properties"]["name"] == "urn:ogc:def:crs:OGC:1.3:CRS84"
    else:
        assert content["crs"]["properties"]["name"] == f"urn:ogc:def:crs:EPSG::{code}"


def test_single_points_are_copied_and_place_no_polygon(tmp_path):
    points = doubles(TIE, *CORNER, 9, 0, 0, 500009, 5800001, 0)
    place = read_georeference(write(tmp_path / "a.tif", [points, projected(32632)]))
    assert place.tags[0][0] == TIE and len(place.tags[0][3]) == 12
    assert geojson([], place=place).keys() == {"type", "features"}
    assert place.on_map(np.array([[3, 2]])).tolist() == [[3, 2]]


def test_photos_without_a_place_and_turned_ones(tmp_path):
    tags, *_ = KINDS["scale"]
    assert read_georeference(write(tmp_path / "plain.tif", [])) is None
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    assert read_georeference(tmp_path / "a.png") is None
    unknown = write(tmp_path / "unknown.tif", [*tags, (274, 3, 1, 0, True)])
    assert read_georeference(unknown) is not None
    turned = write(tmp_path / "turned.tif", [*tags, (274, 3, 1, 6, True)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read_georeference(turned) is None
    (warning,) = caught
    check_message(warning.message, 6, where=f"{turned}: ", todo="orientation 1")


BROKEN = {
    "a scale of NaN": [doubles(SCALE, np.nan, 1, 0), doubles(TIE, *CORNER)],
    "an infinite corner": [doubles(SCALE, 1, 1, 0), doubles(TIE, 0, 0, 0, np.inf, 5, 0)],
    "five numbers of a tie point": [doubles(SCALE, 1, 1, 0), doubles(TIE, *CORNER[:5])],
    "one number of a scale": [doubles(SCALE, 1), doubles(TIE, *CORNER)],
    "a short matrix": [doubles(MATRIX, *range(15))],
    "a cut directory": [*KINDS["scale"][0][:2], (KEYS, 3, 6, [1, 1, 0, 1, 1024, 0], True)],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_tags_that_are_no_place_are_passed_over_with_a_line(kind, tmp_path):
    """The photo is segmented, without coordinates that would be wrong."""
    path = write(tmp_path / "a.tif", BROKEN[kind])
    with pytest.warns(UserWarning) as caught:
        assert read_georeference(path) is None
    check_message(caught[0].message, "decode", where=f"{path}: ", todo="gdal_edit")


def test_values_of_the_geokeys_as_gdal_writes_them(tmp_path):
    """The directory has codes, and for texts (tag 34737) their length and place instead of values.

    Of UTM zone 32N by gdal_translate, in whose text 3072 would be a code if it were read as one.
    """
    citation = (1026, 34737, 22, 0)
    rows = [(1024, 0, 1, 1), (1025, 0, 1, 1), citation, (2048, 0, 1, 4258), (3072, 0, 1, 25832)]
    tags = [doubles(SCALE, 1, 1, 0), doubles(TIE, *CORNER), keys(*rows), ASCII]
    place = read_georeference(write(tmp_path / "a.tif", tags))
    assert place.epsg == 25832  # not 4258, the geographic system below it
    assert {tag[0] for tag in place.tags} == {SCALE, TIE, KEYS, 34737}
    assert [tag[3] for tag in place.tags if tag[0] == 34737] == ["WGS 84 / UTM zone 32N|"]
    geographic = keys((1024, 0, 1, 2), (3072, 34736, 3, 1), (2048, 0, 1, 4258))
    place = read_georeference(write(tmp_path / "b.tif", [*tags[:2], geographic]))
    assert place.epsg == 4258


def test_each_page_has_its_own_place(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for x in (10, 20):
            tags = [doubles(SCALE, 1, 1, 0), doubles(TIE, 0, 0, 0, x, 9, 0), projected(32632)]
            pixels = np.zeros((4 + x, 5), np.uint8)
            file.write(pixels, photometric="minisblack", metadata=None, extratags=tags)
    places = [read_georeference(tmp_path / "a.tif", page) for page in (0, 1)]
    assert [place.on_map(np.zeros((1, 2)))[0, 0] for place in places] == [10, 20]
