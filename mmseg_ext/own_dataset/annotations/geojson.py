"""GeoJSON as QuPath writes it: a file of an image, with classified polygons in pixels.

Classes follow the background in the alphabetical order of the labels, in QuPath's colors. Small
objects cover large ones.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmseg_ext.own_dataset.annotations.polygons import Shape, ShapeFiles, Size, label_of
from mmseg_ext.own_dataset.annotations.reader import Annotation


class Geojson(ShapeFiles):
    """Files of QuPath and of `image_demo --json`."""

    flag = "--geojson"
    suffixes = (".geojson", ".json")
    ignored = ("Ignore*",)  # a class of QuPath

    def parse(self, annotation: Annotation, size: Size) -> tuple[list[Shape], tuple]:
        features = json.loads(annotation.path.read_bytes())
        if isinstance(features, dict):
            features = features.get("features", [features])
        return list(map(self._shape, features)), (None, None)

    def _shape(self, feature: Mapping[str, Any]) -> Shape:
        classification = (feature.get("properties") or {}).get("classification") or {}
        # Classes of several words are "names": ["Tumor", "Positive"].
        name = classification.get("name") or ": ".join(classification.get("names", ()))
        geometry: Any = feature["geometry"] or {"type": "feature without a geometry"}
        kind, parts = geometry["type"], geometry.get("coordinates")  # collections have none
        if kind not in ("Polygon", "MultiPolygon"):
            return Shape(name, skipped=kind)
        if not name:
            return Shape(name, skipped="shape without a classification")
        label = label_of(name)
        if "color" in classification:
            self.colors[label] = "#{:02x}{:02x}{:02x}".format(*classification["color"])
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
