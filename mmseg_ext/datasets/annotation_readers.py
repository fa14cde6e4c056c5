"""Readers of annotations: folders of masks, COCO files and labelme files."""

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from mmseg_ext.datasets.images import image_files
from mmseg_ext.errors import LabelError

BACKGROUND = "background"
Key = tuple[str | None, str]  # the split that a folder names; the path without split and suffix

_SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val"}
_SPLITS |= {"validation": "val", "test": "test", "testing": "test"}
_PALETTE, _COLOR = 1, 2


class Annotation(NamedTuple):
    """An annotation: its file, and the image in it if the file has several."""

    path: Path
    name: str = ""
    content: Any = None


def keyed_files(folder: Path, suffix: str = "") -> dict[Path, Key]:
    """Return the images below `folder`, or its files with `suffix`, with their keys.

    Raises:
        ValueError: if there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    found = sorted(folder.rglob(f"*{suffix}")) if suffix else image_files(folder, recursive=True)
    found = [path for path in found if path.is_file() and not path.name.startswith(".")]
    return {path: key_of(path.relative_to(folder)) for path in found}


def key_of(path: Path) -> Key:
    """Return the key of a file, whose path is relative to the folder of all images or masks."""
    folders = [part for part in path.parts[:-1] if part.lower() not in _SPLITS]
    splits = [_SPLITS[part.lower()] for part in path.parts[:-1] if part.lower() in _SPLITS]
    return (splits or [None])[0], "/".join([*folders, path.stem])


class Masks:
    """Images with one gray value, palette index or color per class.

    Values are indices, or colors 0xRRGGBB if a mask is colored or palettes disagree on an index.
    All readers have these attributes and methods.
    """

    colored = False
    upright = False  # whether annotations belong to photos rotated by their EXIF orientation
    suffix = ""  # of the annotations; any image if empty

    def __init__(self, folder: Path):
        files = keyed_files(folder, self.suffix)
        self.files = {key: Annotation(path) for path, key in files.items()}
        self.labels: dict[int, str] = {}  # the text of each value, in the order of the classes

    def prepare(self, annotations: Iterable[Annotation]) -> None:
        """Set `labels` to the values in `annotations`."""
        codes: set[int] = set()
        for annotation in annotations:
            with contextlib.suppress(LabelError):  # `read` raises it again
                runs = torch.from_numpy(_codes(annotation.path)).unique_consecutive()
                codes.update(runs.unique().tolist())
        palette = {code for code in codes if code >> 40 == _PALETTE}
        self.colored |= len({code >> 24 for code in palette}) < len(palette)
        self.colored |= any(c >> 40 == _COLOR and (c & 0xFFFFFF) % 0x10101 for c in codes)
        values = sorted({self._value(code) for code in codes})
        self.labels = {v: f"#{v:06x}" if self.colored else str(v) for v in values}

    def read(self, annotation: Annotation) -> np.ndarray:
        """Return the values (H, W), or raise `LabelError`."""
        return self._value(_codes(annotation.path))

    def _value(self, codes):
        return codes & 0xFFFFFF if self.colored else codes >> 24 & 0xFFFF


def _codes(path: Path) -> np.ndarray:
    """Return the kind, index and color of each pixel: (H, W) kind << 40 | index << 24 | color.

    Raises:
        LabelError: if `path` cannot be read, or its values are not integers below 65,536.
    """
    try:
        with Image.open(path) as image:
            if image.mode in ("1", "L", "LA", "F") or image.mode.startswith("I"):
                gray = np.asarray(image.convert("L") if image.mode in ("1", "LA") else image)
                if gray.dtype.kind == "f" or gray.min() < 0 or gray.max() > 0xFFFF:
                    raise ValueError(f"{gray.dtype} values from {gray.min()} to {gray.max()}")
                return gray.astype(np.int64) << 24 | gray.clip(0, 255).astype(np.int64) * 0x10101
            red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(np.int64), 2, 0)
            indexed = image.mode == "P"
            kind, index = (_PALETTE, np.asarray(image)) if indexed else (_COLOR, red)
            return kind << 40 | index.astype(np.int64) << 24 | red << 16 | green << 8 | blue
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error, ...
        raise LabelError(f"{path}: cannot be read as a mask ({error})") from error


class Polygons(Masks):
    """Polygons and run lengths with labels; later ones cover earlier ones, and 0 is background."""

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        """Return the size (H, W), and each shape's label and COCO segmentation."""
        raise NotImplementedError

    def read(self, annotation: Annotation) -> np.ndarray:
        try:
            from pycocotools import mask as masks
        except ImportError:
            raise ValueError("polygons need pycocotools; run: pip install pycocotools") from None
        value = {name: value for value, name in self.labels.items()}
        try:
            size, shapes = self.shapes(annotation)
            values = np.zeros(size, int)
            for name, shape in shapes:
                if isinstance(shape, list) or isinstance(shape["counts"], list):
                    shape = masks.frPyObjects(shape, *size)
                code = masks.merge(shape) if isinstance(shape, list) else shape
                values[masks.decode(code) > 0] = value[name]
        except Exception as error:  # any JSON can be in the file
            where = f"{annotation.path}: {annotation.name or 'the file'}"
            raise LabelError(f"{where} cannot be read ({error!r})") from error
        return values


class Coco(Polygons):
    """COCO files; the categories follow the background in the order of their ids."""

    def __init__(self, paths: Sequence[Path]):
        self.files = {}
        names: dict[str, None] = {BACKGROUND: None}
        for path in paths:
            # instances_val.json: its images are of the split val
            split, _ = key_of(Path(*re.split(r"[._-]", path.stem), "image"))
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                categories = {c["id"]: c["name"] for c in content["categories"]}
                if not (categories and content["images"]):
                    raise ValueError("it lists no images or no categories")
                names |= {categories[i]: None for i in sorted(categories)}
                shapes = defaultdict(list)
                for shape in content["annotations"]:
                    shapes[shape["image_id"]].append(shape)
                for image in content["images"]:
                    own, name = key_of(Path(image["file_name"]))
                    described = (image, shapes[image["id"]], categories)
                    self.files[own or split, name] = Annotation(path, image["file_name"], described)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: is not a COCO file ({error!r})") from error
        self.labels = dict(enumerate(names))

    def prepare(self, annotations: Iterable[Annotation]) -> None:
        pass

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        image, shapes, categories = annotation.content
        named = [(categories[s["category_id"]], s["segmentation"]) for s in shapes]
        return (image["height"], image["width"]), named


class Labelme(Polygons):
    """labelme's JSON files with polygons and rectangles; the labels are in alphabetical order."""

    upright = True
    suffix = ".json"

    def prepare(self, annotations: Iterable[Annotation]) -> None:
        names: set[str] = set()
        for annotation in annotations:
            with contextlib.suppress(Exception):  # `read` raises it again
                names.update(label for label, _ in self.shapes(annotation)[1])
        self.labels = dict(enumerate([BACKGROUND, *sorted(names - {BACKGROUND})]))

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        content = json.loads(annotation.path.read_text(encoding="utf-8"))
        shapes = []
        for shape in content["shapes"]:
            points, kind = np.array(shape["points"], float), shape.get("shape_type", "polygon")
            if kind == "rectangle":  # two corners
                (left, top), (right, bottom) = points.min(0), points.max(0)
                points = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
            elif kind != "polygon" or len(points) < 3:
                raise ValueError(f"a {kind} with {len(points)} points; only polygons are read")
            shapes.append((str(shape["label"]), [points.ravel().tolist()]))
        return (int(content["imageHeight"]), int(content["imageWidth"])), shapes
