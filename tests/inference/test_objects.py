"""Objects of label maps: what OpenCV finds, against shapely's geometry."""

import json

import numpy as np
import pytest
from pycocotools import mask as coco
from shapely import Polygon, box, union_all
from shapely.geometry import shape

from mmseg_ext.inference.objects import coco_annotation, geojson  # what image_demo --json writes
from mmseg_ext.inference.predictor import Segmentation

# Two objects of class 1: pixels that only share a corner are not connected. The first has a hole.
DRAWN = """
. 1 1 1 . 2
. 1 . 1 . 2
. 1 1 1 . .
1 . . . . .
"""


def segmentation(labels: np.ndarray, *classes: str) -> Segmentation:
    palette, image = np.zeros((len(classes), 3), np.uint8), np.zeros((*labels.shape, 3), np.uint8)
    return Segmentation(labels, classes, palette, image)


@pytest.fixture
def drawn() -> Segmentation:
    rows = [line.replace(".", "0").split() for line in DRAWN.split("\n")[1:-1]]
    return segmentation(np.array(rows, np.uint8), "ground", "ring", "bar")


def merge_pixels(mask: np.ndarray) -> list[Polygon]:
    """Return a polygon for each set of pixels that are connected along edges."""
    merged = union_all([box(x, y, x + 1, y + 1) for y, x in np.argwhere(mask)])
    return list(getattr(merged, "geoms", [merged]))


def test_objects_of_a_class(drawn):
    ring, dot = drawn.objects("ring")
    assert (ring.name, ring.area, ring.box, ring.centroid) == ("ring", 8, (1, 0, 3, 3), (2.5, 1.5))
    assert ring.mask.tolist() == [[True] * 3, [True, False, True], [True] * 3]
    outline, hole = (set(map(tuple, points.tolist())) for points in ring.polygon)
    assert outline == {(1, 0), (4, 0), (4, 3), (1, 3)}
    assert hole == {(2, 1), (3, 1), (3, 2), (2, 2)}
    assert (dot.area, dot.box, dot.centroid) == (1, (0, 3, 1, 1), (0.5, 3.5))
    assert [found.area for found in drawn.objects("ring", min_area=8)] == [8]
    assert drawn.objects("ring", min_area=9) == []
    with pytest.raises(ValueError, match=r"'disk'.*ring"):
        drawn.objects("disk")
    with pytest.raises(ValueError, match=r"'disk'.*ring"):
        drawn.overlay(drawn=["ring", "disk"])


@pytest.mark.parametrize("density", [0.3, 0.6, 0.8, 0.95])
def test_polygons_are_valid_and_measure_the_pixels(density):
    random = np.random.RandomState(0)
    for _ in range(20):
        mask = random.rand(*random.randint(1, 25, 2)) < density
        objects = segmentation(mask.astype(np.uint16) + 300, *map(str, range(302))).objects("301")
        expected = merge_pixels(mask)
        assert len(objects) == len(expected)
        for found in objects:
            x, y, width, height = found.box
            pixels = np.zeros_like(mask)
            pixels[y : y + height, x : x + width] = found.mask
            (merged,) = merge_pixels(pixels)
            polygon = Polygon(found.polygon[0], found.polygon[1:])
            assert polygon.is_valid and polygon.equals(merged) and polygon.area == found.area
            assert sum(polygon.equals(part) for part in expected) == 1
            assert polygon.bounds == (x, y, x + width, y + height)
            assert np.allclose(polygon.centroid.coords[0], found.centroid)


def test_measures_are_those_of_scikit_image():
    measure = pytest.importorskip("skimage.measure")
    random = np.random.RandomState(2)
    for density in (0.3, 0.6, 0.9):
        mask = random.rand(20, 24) < density
        values = random.randint(0, 60000, (20, 24, 4)).astype(np.uint16)
        found = segmentation(mask.astype(np.uint8), "0", "1").objects("1")
        parts, count = measure.label(mask, connectivity=1, return_num=True)
        assert len(found) == count
        for own, expected in zip(found, measure.regionprops(parts, values), strict=True):
            crofton = measure.perimeter_crofton(expected.image, directions=4)
            assert own.perimeter == pytest.approx(crofton)
            assert own.equivalent_diameter == pytest.approx(expected.equivalent_diameter_area)
            assert own.mean(values) == pytest.approx(expected.intensity_mean.tolist())


def test_a_disk_is_round_and_a_line_is_not():
    y, x = np.mgrid[:101, :101]
    disk = ((y - 50) ** 2 + (x - 50) ** 2 <= 40**2).astype(np.uint8)
    (found,) = segmentation(disk, "0", "1").objects("1")
    assert found.circularity == pytest.approx(1, abs=0.03)
    assert found.equivalent_diameter == pytest.approx(80, abs=0.5)
    assert found.perimeter == pytest.approx(80 * np.pi, rel=0.01)
    line = np.zeros((3, 60), np.uint8)
    line[1, 5:55] = 1
    (found,) = segmentation(line, "0", "1").objects("1")
    assert found.circularity < 0.1


def test_geojson_closes_its_rings(drawn):
    objects = [*drawn.objects("ring"), *drawn.objects("bar"), *drawn.objects("ground")]
    features = geojson(objects)["features"]
    for found, feature in zip(objects, json.loads(json.dumps(features)), strict=True):
        polygon = shape(feature["geometry"])
        rings = feature["geometry"]["coordinates"]
        assert polygon.is_valid and polygon.area == found.area and len(rings) == len(found.polygon)
        assert all(ring[0] == ring[-1] and len(ring) >= 5 for ring in rings)
        properties = feature["properties"]
        assert properties["class"] == found.name and properties["area"] == found.area
        assert properties["box"] == [*found.box] and properties["centroid"] == [*found.centroid]


def test_coco_has_the_pixels():
    """Of polygons, and of run lengths for objects with holes."""
    random, kinds = np.random.RandomState(1), set()
    for density in (0.3, 0.6, 0.8, 0.95):
        mask = random.rand(19, 23) < density
        covered = np.zeros(mask.shape, int)
        for found in segmentation(mask.astype(np.uint8), "0", "1").objects("1"):
            annotation = coco_annotation(found, mask.shape)
            written = json.loads(json.dumps(annotation["segmentation"]))
            runs = coco.frPyObjects(written, *mask.shape)
            pixels = coco.decode(runs[0] if isinstance(runs, list) else runs)
            assert pixels.sum() == annotation["area"] == found.area
            assert annotation["bbox"] == [*found.box]
            covered += pixels
            kinds.add(type(written))
        assert (covered == mask).all()
    assert kinds == {list, dict}
