"""The objects of a label map: the connected components of a class, measured and exported.

Coordinates are pixels from the upper left corner of the image, x before y. The first pixel covers 0
to 1, so its center is at 0.5, and polygons follow the edges of the pixels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from mmseg_ext.inference.georeference import Georeference

BORDER = "border"  # between objects that touch
# Classes that are not drawn and not counted; class_0: the lowest value of masks without names.
NO_OBJECTS = ("background", "class_0", BORDER)


@dataclass(frozen=True, eq=False)
class SegmentedObject:
    """A connected component of a class: pixels that share an edge.

    Attributes:
        name: name of the class.
        area: number of pixels.
        box: x, y, width and height of the bounding box.
        centroid: x and y of the mean of its pixels.
        mask: its pixels inside the box (height, width), bool.
    """

    name: str
    area: int
    box: tuple[int, int, int, int]
    centroid: tuple[float, float]
    mask: np.ndarray

    @property
    def polygon(self) -> list[np.ndarray]:
        """The rings of points (x, y), int: the outline, and then one ring for each hole.

        The polygon is valid, and its area without the holes is `area`. A ring ends before its first
        point.
        """
        # OpenCV connects the centers of border pixels. At twice the size, pixel i has the centers
        # 2 i and 2 i + 1, and (c + 1) // 2 moves them to the pixel's edges i and i + 1.
        size = (2 * self.box[2], 2 * self.box[3])
        fine = cv2.resize(self.mask.view(np.uint8), size, interpolation=cv2.INTER_NEAREST)
        found, _ = cv2.findContours(fine, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        rings = []
        for contour in found:
            ring = (contour[:, 0] + 1) // 2 + self.box[:2]  # (points, 2)
            differs = (ring != np.roll(ring, 1, axis=0)).any(1)  # from the point before
            rings.append(ring[differs])
        return sorted(rings, key=lambda ring: ring.min(0).tolist())  # the outline starts leftmost

    @property
    def equivalent_diameter(self) -> float:
        """The diameter of a disk with this area."""
        return math.sqrt(4 * self.area / math.pi)

    @property
    def perimeter(self) -> float:
        """Length of the outline and of the holes, by Crofton's formula.

        It counts how often lines in four directions cross them, like `perimeter_crofton` of
        scikit-image, and is right on average, while the edges of pixels are too long.
        """
        mask = np.pad(self.mask, 1)
        straight = (mask[1:] != mask[:-1]).sum() + (mask[:, 1:] != mask[:, :-1]).sum()
        falling = (mask[1:, 1:] != mask[:-1, :-1]).sum()
        rising = (mask[1:, :-1] != mask[:-1, 1:]).sum()
        return math.pi / 8 * float(straight + (falling + rising) / math.sqrt(2))

    @property
    def circularity(self) -> float:
        """4 pi area / perimeter^2: 1 for a disk and for objects of few pixels."""
        return min(1, 4 * math.pi * self.area / self.perimeter**2)

    def mean(self, values: np.ndarray) -> list[float]:
        """Return the mean of each band of an image (H, W, bands) over the pixels."""
        x, y, width, height = self.box
        return values[y : y + height, x : x + width][self.mask].mean(0, np.float64).tolist()


def find_objects(
    labels: np.ndarray, index: int, name: str, min_area: int = 0
) -> list[SegmentedObject]:
    """Return the objects of class `index` in `labels` (H, W), from top to bottom."""
    of_class = (labels == index).view(np.uint8)
    if not of_class.any():
        return []
    _, parts, stats, centers = cv2.connectedComponentsWithStats(of_class, connectivity=4)
    objects = []
    for i in range(1, len(stats)):
        x, y, width, height, area = stats[i].tolist()
        if area >= min_area:
            mask = parts[y : y + height, x : x + width] == i
            center = (centers[i] + 0.5).tolist()
            objects.append(SegmentedObject(name, area, (x, y, width, height), tuple(center), mask))
    return objects


def geojson(
    objects: Iterable[SegmentedObject],
    colors: Mapping[str, Sequence[int]] | None = None,
    place: Georeference | None = None,
) -> dict:
    """Return a GeoJSON FeatureCollection of polygons, in pixels instead of degrees.

    QuPath opens them as annotations, in the RGB colors of their classes if `colors` has them. With
    the place of the image they are in the coordinates of its map, and `crs` names these, as GDAL
    and QGIS read it. The properties remain in pixels.
    """
    features = []
    for found in objects:
        rings = []
        for ring in found.polygon:
            points = (ring if place is None else place.on_map(ring)).tolist()
            rings.append(points + points[:1])  # GeoJSON repeats the first point at the end
        classification: dict = {"name": found.name}
        if colors and found.name in colors:
            classification["color"] = list(colors[found.name])
        features.append(
            {
                "type": "Feature",
                "properties": {
                    "objectType": "annotation",
                    "classification": classification,
                    "class": found.name,
                    "area": found.area,
                    "box": found.box,
                    "centroid": found.centroid,
                },
                "geometry": {"type": "Polygon", "coordinates": rings},
            }
        )
    crs = {} if place is None else place.crs()
    return {"type": "FeatureCollection", **crs, "features": features}


def coco_annotation(found: SegmentedObject, size: tuple[int, int]) -> dict:
    """Return `area`, `bbox` and `segmentation` of COCO, for an image of `size` (height, width).

    The segmentation is a polygon, or run lengths if there are holes, which COCO's polygons lack.
    """
    outline, *holes = found.polygon
    segmentation: list | dict = [outline.flatten().tolist()]
    if holes:
        x, y, _, height = found.box
        columns = np.zeros((found.box[2], height + 2), np.int8)
        columns[:, 1:-1] = found.mask.T
        column, row = np.diff(columns, axis=1).nonzero()  # where runs start and end
        borders = (x + column) * size[0] + y + row  # in the image, column by column
        ends = [0, *borders, size[0] * size[1]]
        segmentation = {"size": list(size), "counts": np.diff(ends).tolist()}
    return {
        "area": found.area,
        "bbox": list(found.box),
        "iscrowd": 0,
        "segmentation": segmentation,
    }
