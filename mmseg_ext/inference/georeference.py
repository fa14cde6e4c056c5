"""Where the pixels of a photo are on a map, by the tags of a GeoTIFF.

A label map gets the same place as its photo, and polygons get the coordinates of the map. A
transform (2, 3) maps column, row and 1 of a pixel's upper left corner to x and y.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.images.values import GEOTIFF_TAGS, declarations, is_tiff, tiff_file, tiff_images

_SCALE, _TIE_POINTS, _MATRIX, _KEYS, *_ = GEOTIFF_TAGS
# Keys of GeoTIFF, and their values.
_MODEL_TYPE, _IS_PROJECTED = 1024, 1
_RASTER_TYPE, _PIXEL_IS_POINT = 1025, 2  # the coordinates are those of the pixels' centers
_PROJECTED_SYSTEM, _GEOGRAPHIC_SYSTEM = 3072, 2048
_EPSG_CODES = range(1024, 32767)  # others are defined by the file
_WGS84 = 4326


@dataclass(frozen=True)
class Georeference:
    """The place of an image on a map.

    Attributes:
        tags: of a GeoTIFF, as tifffile's `extratags`.
        transform: from pixels to the map; None if only single points are known.
        epsg: code of the coordinate system, or None if it has none.
    """

    tags: tuple[tuple, ...]
    transform: np.ndarray | None
    epsg: int | None

    def on_map(self, points: np.ndarray) -> np.ndarray:
        """Return points (N, 2), x and y in pixels, in the coordinates of the map."""
        if self.transform is None:
            return points
        return points @ self.transform[:, :2].T + self.transform[:, 2]

    def crs(self) -> dict:
        """Return the member `crs` of a GeoJSON file, or nothing without a code."""
        if self.epsg is None or self.transform is None:
            return {}
        name = f"urn:ogc:def:crs:EPSG::{self.epsg}"
        if self.epsg == _WGS84:  # with the longitude first, as in all GeoJSON
            name = "urn:ogc:def:crs:OGC:1.3:CRS84"
        return {"crs": {"type": "name", "properties": {"name": name}}}


def read_georeference(path: str | Path, page: int | None = None) -> Georeference | None:
    """Return the place of the photo at `path`, or None if the file does not tell it.

    A photo that readers turn by its orientation has none, with a warning.

    Args:
        page: number of the image in a stack, from 0, as in `tiff_images`.
    """
    with Path(path).open("rb") as file:
        if not is_tiff(file.read(4)):
            return None
        file.seek(0)
        with tiff_file(file) as tiff:
            pages = [tiff.pages[0]] if page is None else tiff_images(tiff)[page]
            found = declarations(pages)
    return place_of(found["geotags"], found["orientation"], str(path))


def place_of(tags: tuple[tuple, ...], orientation: int, name: str) -> Georeference | None:
    """Return the place of a photo by its `geotags`; None without one, or if it is turned."""
    values = {code: value for code, _, _, value, _ in tags}
    if not {_TIE_POINTS, _MATRIX} & values.keys():
        return None
    if orientation != 1:
        todo = "its results have no map coordinates; save it with orientation 1"
        warnings.warn(f"{name}: is on a map with orientation {orientation}, so {todo}")
        return None
    try:
        return Georeference(tags, *_decode(values))
    except (IndexError, TypeError, ValueError):
        todo = "its results have no map coordinates; write them with gdal_edit"
        warnings.warn(f"{name}: its tags of a place on a map do not decode, so {todo}")
        return None


def _decode(values: dict[int, Any]) -> tuple[np.ndarray | None, int | None]:
    """Return the transform and the code of the coordinate system by the values of GeoTIFF's tags.

    Raises:
        IndexError, TypeError, ValueError: for too few values, or for a transform of NaN.
    """
    # The directory has a header of four numbers, and then four for each key: its code, where its
    # value is (0: here), the count, and the value.
    rows = np.array(values.get(_KEYS, ())).reshape(-1, 4)[1:].tolist()
    keys = {code: value for code, tag, _, value in rows if tag == 0}
    is_projected = keys.get(_MODEL_TYPE) == _IS_PROJECTED
    code = keys.get(_PROJECTED_SYSTEM if is_projected else _GEOGRAPHIC_SYSTEM, 0)
    epsg = int(code) if code in _EPSG_CODES else None
    points = np.array(values.get(_TIE_POINTS, ()), float).reshape(-1, 6)
    if _SCALE in values and len(points):
        column, row, _, x, y, _ = points[0]
        width, height, *_ = values[_SCALE]
        height = -abs(height)  # as GDAL reads it
        transform = np.array([[width, 0, x - column * width], [0, height, y - row * height]])
    elif _MATRIX in values:
        transform = np.array(values[_MATRIX], float).reshape(4, 4)[:2, [0, 1, 3]]
    else:  # single points
        return None, epsg
    if not np.isfinite(transform).all():
        raise ValueError("a transform of NaN or infinity")
    if keys.get(_RASTER_TYPE) == _PIXEL_IS_POINT:
        transform[:, 2] -= transform[:, :2].sum(1) / 2
    return transform, epsg


def write_geotiff(values: np.ndarray, place: Georeference, path: Path) -> None:
    """Write an array (H, W) at the place of its image."""
    import tifffile

    with atomic_write(path) as part:
        tifffile.imwrite(
            part,
            values,
            photometric="minisblack",
            compression="zlib",
            metadata=None,
            extratags=place.tags,
        )
