"""GeoJSON as QuPath writes it: a file of an image, with classified polygons in pixels.

Classes follow the background in the alphabetical order of the labels, in QuPath's colors. Small
objects cover large ones.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmseg_ext.own_dataset.annotations import polygons
from mmseg_ext.own_dataset.annotations.annotation import Annotation
from mmseg_ext.own_dataset.annotations.formats import format_of
from mmseg_ext.own_dataset.annotations.polygons import Drawing, Shape, ShapeFiles, Size


class Geojson(ShapeFiles):
    """QuPath's files, and those of `image_demo --json`."""

    flag = "--geojson"
    suffixes = (".geojson", ".json")
    ignored = ("Ignore*",)  # a class of QuPath

    def parse(self, annotation: Annotation, size: Size) -> Drawing:
        features = json.loads(annotation.path.read_bytes())
        if isinstance(features, dict):
            features = features.get("features", [features])
        if any("geometry" not in feature for feature in features):
            raise ValueError(format_of(annotation.path) or "it has no list `features`")
        return Drawing(list(map(self._shape, features)))

    def _shape(self, feature: Mapping[str, Any]) -> Shape:
        properties = feature.get("properties") or {}
        classification = properties.get("classification") or {}
        # Classes of several words are "names": ["Tumor", "Positive"].
        name = classification.get("name") or ": ".join(classification.get("names", ()))
        name = name or properties.get("class")  # of earlier files of `image_demo`
        kind, parts = feature["geometry"]["type"], feature["geometry"]["coordinates"]
        if kind not in ("Polygon", "MultiPolygon"):
            return polygons.without_area(kind)
        if not name:
            return Shape("", skipped="a shape without a classification is not drawn")
        label = polygons.label_of(name)
        if "color" in classification:
            self.colors[label] = classification["color"]
        return Shape(label, list(map(_join_rings, [parts] if kind == "Polygon" else parts)))


def _join_rings(rings: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Return an outline and its holes as one polygon, which the even-odd rule fills.

    Lines lead from the outline's start to each hole and back.
    """
    points: list[float] = []
    for ring in rings:
        for x, y, *_ in [*ring, rings[0][0]]:
            points += x, y
    return points
