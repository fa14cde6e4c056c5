"""Readers of annotations: folders of masks, COCO files and labelme files."""

import base64
import contextlib
import functools
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image

from mmseg_ext.datasets.nuclei import draw_labels
from mmseg_ext.errors import LabelError
from mmseg_ext.images.files import files_below
from mmseg_ext.images.values import IMAGE_SUFFIXES, is_tiff, read_pixels
from mmseg_ext.own_dataset.matching import MASK_SUFFIXES, Key, key_of, split_in
from mmseg_ext.terminal import progress

BACKGROUND = "background"
_PALETTE, _COLOR = 1, 2
_RGB = np.array([0x10000, 0x100, 1])
_FEW = 4  # values; fewer are no numbers of objects
_SMOOTH = 40  # values from 0 to 255; fewer are perhaps classes, such as those of Cityscapes
_READ = 8  # masks, to find out what they are
_TWO_CLASSES = "run: mkdir NEW; magick mogrify -path NEW -format png -threshold 50% MASKS/*"


class Annotation(NamedTuple):
    """An annotation of an image."""

    path: Path
    name: str = ""  # of the image, if the file has several
    content: Any = None  # the image's part of the file, or the paths of its masks by class
    objects: tuple[Path, ...] = ()  # more masks of the same image


def keyed_files(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> dict[Path, Key]:
    """Return the files below `folder` with these suffixes, and their keys.

    `folder` may end in a pattern, as in `masks/*_label.png` or `data/*/*_label.png`. Then files in
    deeper folders count, too, and the part that fits the last * is the name.

    Raises:
        ValueError: if there is no such folder.
    """
    parts = folder.parts
    fixed = next((i for i, part in enumerate(parts) if "*" in part), len(parts))
    folder, pattern = Path(*parts[:fixed]), "/".join(parts[fixed:]) or "*"
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    start, _, end = PurePath(pattern).name.partition("*")
    keys = {}
    for path in files_below(folder):
        relative = path.relative_to(folder)
        if path.suffix.lower() in suffixes and relative.match(pattern):
            name = path.name.removeprefix(start).removesuffix(end) or path.name
            keys[path] = key_of(relative.with_name(name))
    return keys


@contextlib.contextmanager
def _reading(annotation: Annotation) -> Iterator[None]:
    """Raise any error as `LabelError` with the file's path; any bytes can be in the file."""
    try:
        yield
    except Exception as error:
        where = f"{annotation.path}: {annotation.name}".rstrip(": ")
        reason = error if isinstance(error, ValueError) else repr(error)
        raise LabelError(f"{where}: cannot be read ({reason})") from error


def _require_size(size: tuple[int, ...], sizes: Sequence[tuple[int, int]]) -> None:
    if size not in sizes:
        found, image = (f"{width}x{height}" for height, width in (size, sizes[0]))
        raise ValueError(f"it is {found}, but its image is {image}")


class Masks:
    """Images with one gray value, palette index or color per class.

    Values are indices, or colors 0xRRGGBB if a mask is colored or palettes disagree on an index.
    All readers have these attributes and methods.
    """

    colored = False
    suffixes: Sequence[str] = MASK_SUFFIXES
    names: Sequence[str] | None = None  # of the classes, if the user gives none
    ignored: Sequence[str] = ()  # labels that are ignored in any case
    hint = ""  # what else the masks could be, or why they have only one value
    notes: Sequence[str] = ()  # on what `prepare` found
    is_pattern = False

    def __init__(self, folder: Path):
        files = keyed_files(folder, self.suffixes)
        self.is_pattern = "*" in str(folder)
        self.files = [(key, Annotation(path)) for path, key in files.items()]
        self.labels: dict[int, str] = {}  # the text of each value, in the order of the classes
        self.colors: dict[str, list[int]] = {}  # RGB of each text, if the masks have colors

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        """Set `labels` to the values in `annotations`, and return the labels of each.

        Raises:
            LabelError: if none can be read.
        """
        found = self._read_each(annotations, lambda a: {*_values(_codes(a)).tolist()})
        codes = set().union(*found)
        palette = {code for code in codes if code >> 40 == _PALETTE}
        self.colored |= len({code >> 24 for code in palette}) < len(palette)
        self.colored |= any(c >> 40 == _COLOR and (c & 0xFFFFFF) % 0x10101 for c in codes)
        values = sorted({self._value(code) for code in codes})
        self.labels = {v: f"#{v:06x}" if self.colored else str(v) for v in values}
        text = {code: self.labels[self._value(code)] for code in codes}
        if any(code >> 40 and (code & 0xFFFFFF) % 0x10101 for code in codes):
            # A palette's color comes last: it counts, not the black of transparent pixels.
            last = sorted(codes, reverse=True)
            self.colors = {text[c]: list((c & 0xFFFFFF).to_bytes(3, "big")) for c in last}
        if not self.colored and self._number_objects(found, annotations):
            self.hint = (
                f"the values up to {values[-1]} seem to number objects, because each is one region "
                "and images have different ones; then use --objects"
            )
        elif not self.colored and len(values) > _SMOOTH and {0, 255} <= {*values}:
            self.hint = f"if {len(values)} values are two classes with smooth edges, {_TWO_CLASSES}"
        return [{text[code] for code in part} for part in found]

    def _read_each(self, annotations: Sequence[Annotation], read: Callable) -> list[set]:
        """Return the sets that `read` finds, empty ones for annotations that cannot be read."""
        found, problems = [], []
        for annotation in progress(annotations, "reading", len(annotations)):
            try:
                found.append(read(annotation))
            except LabelError as error:  # `read` of the class raises it again
                problems.append(error)
                found.append(set())
        if problems and len(problems) == len(found):
            raise problems[0]
        if problems and len(set().union(*found)) < 2:
            self.hint = str(problems[0])
        return found

    def _number_objects(self, found: Sequence[set], annotations: Sequence[Annotation]) -> bool:
        """Return whether values count from 1, or are in few masks, and each is one region."""
        values = [{self._value(code) for code in part} - {0} for part in found]
        several, every = [i for i, own in enumerate(values) if len(own) > 1], set().union(*values)
        if len({*map(len, values)}) < 2 or len(every) < _FEW or not several:
            return False
        counted = sum(max(values[i]) == len(values[i]) for i in several) > 0.9 * len(several)
        regions = numbers = 0
        for i in several[:: -(-len(several) // _READ)]:
            mask = self._value(_codes(annotations[i])).astype(np.uint16)
            parts = [cv2.connectedComponents((mask == v).view(np.uint8))[0] - 1 for v in values[i]]
            regions, numbers = regions + sum(parts), numbers + len(parts)
        return (counted or sum(map(len, values)) < 2 * len(every)) and regions <= 1.2 * numbers

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        """Return the values (H, W), or raise `LabelError`; `sizes` are the possible sizes."""
        values = self._value(_codes(annotation))
        with _reading(annotation):
            _require_size(values.shape, sizes)
        return values

    def _value(self, codes):
        return codes & 0xFFFFFF if self.colored else _index(codes)


def _codes(annotation: Annotation) -> np.ndarray:
    """Return the kind, index and color of each pixel: (H, W) kind << 40 | index << 24 | color.

    The index of a color is its largest part. Of several masks of objects, the largest value counts.
    """
    with _reading(annotation):
        return functools.reduce(np.maximum, map(_codes_of, [annotation.path, *annotation.objects]))


def _values(codes: np.ndarray) -> np.ndarray:
    """Return the different codes; np.unique sorts all pixels."""
    return torch.from_numpy(codes).unique_consecutive().unique().numpy()


def _codes_of(path: Path) -> np.ndarray:
    data = path.read_bytes()
    if data.startswith(b"\xff\xd8"):
        raise ValueError(f"JPEG changes a mask; export PNG, or for two classes {_TWO_CLASSES}")
    pixels = read_pixels(data, indices=True)
    pixels = pixels.upright() if is_tiff(data) else pixels
    values, alpha, palette = pixels.values, pixels.alpha, pixels.palette
    if values.dtype == bool:
        values = np.where(values, 255, 0)  # white is 255 in files of 8 bits
    own = np.delete(values, alpha, axis=2)
    if own.shape[2] not in (1, 3):
        raise ValueError(f"{own.shape[2]} bands; a mask has a value or a color in each pixel")
    with np.errstate(invalid="ignore"):  # NaN, which differs from its code
        codes = own.astype(np.int64)
    if (codes != own).any() or codes.min() < 0 or codes.max() > 0xFFFF:
        found = f"{own.dtype} values from {own.min()} to {own.max()}"
        raise ValueError(f"{found}; save whole numbers of 0 to 65535")
    if palette is not None:
        table = _PALETTE << 40 | np.arange(len(palette)) << 24 | palette[:, :3] @ _RGB
        table[palette[:, 3] == 0] = _COLOR << 40  # black
        codes = table[codes[..., 0]]
    elif own.shape[2] == 1:
        codes = codes[..., 0] << 24 | codes[..., 0].clip(0, 255) * 0x10101
    else:
        if codes.max() > 255:
            if (codes % 257).any():
                raise ValueError("colors of 16 bits; save them with 8 bits")
            codes //= 257
        codes = _COLOR << 40 | codes.max(2) << 24 | codes @ _RGB
    for band in alpha:  # an eraser leaves any color
        codes[values[..., band] == 0] = _COLOR << 40
    return codes


def _index(codes):
    return codes >> 24 & 0xFFFF


class ObjectMasks(Masks):
    """Masks with a number or color for each object, or a mask for each object.

    The values are 0 background, 1 object, and 2 border, where two objects are close: the classes of
    `NucleiDataset`.
    """

    names = ("background", "object", "border")

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        self.labels = {0: "no object", 1: "object", 2: "border"}
        return [set(self.labels.values()) for _ in annotations]

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        with _reading(annotation):
            codes = _codes_of(annotation.path)
            _require_size(codes.shape, sizes)
            if annotation.objects:
                numbers = np.zeros(codes.shape, np.uint16)
                for number, path in enumerate([annotation.path, *annotation.objects], start=1):
                    numbers[_index(_codes_of(path)) > 0] = number
            else:
                numbers = np.unique(codes, return_inverse=True)[1].reshape(codes.shape) + 1
                numbers[_index(codes) == 0] = 0
            return draw_labels(numbers.astype(np.uint16))


def _label(text: Any) -> str:
    return BACKGROUND if text == "_background_" else str(text)  # labelme's name


class Polygons(Masks):
    """Polygons and run lengths with labels; later ones cover earlier ones, and 0 is background."""

    ignored = ("__ignore__",)  # of labelme

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        def labels(annotation: Annotation) -> set[str]:
            with _reading(annotation):
                return {BACKGROUND, *(label for label, _ in self.shapes(annotation)[1])}

        return self._read_each(annotations, labels)

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        """Return the size (H, W), and each shape's label and COCO segmentation or `_pixels`."""
        raise NotImplementedError

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        value = {name: value for value, name in self.labels.items()}
        with _reading(annotation):
            size, shapes = self.shapes(annotation)
            _require_size(size, sizes)  # before an array of this size exists
            values = np.zeros(size, int)
            for name, shape in shapes:
                if not isinstance(shape, list):
                    values[_pixels(shape, size)] = value[name]
                    continue
                if not any(len(polygon) >= 6 for polygon in shape):  # three points
                    raise ValueError(f"a {name} has no polygon, as in a file for boxes")
                for polygon in shape:
                    rows, inside = _fill(np.array(polygon, float).reshape(-1, 2), size)
                    values[rows][inside] = value[name]
            return values


def _fill(points: np.ndarray, size: tuple[int, int]) -> tuple[slice, np.ndarray]:
    """Return the rows that a polygon (N, 2) of x, y covers, and its pixels (rows, W) in them.

    A pixel counts if its center is inside, by the even-odd rule. OpenCV's fillPoly also draws the
    outline, which adds 7 % to polygons of 30 pixels.
    """
    if not np.isfinite(points).all():
        raise ValueError("a polygon has numbers that are not finite")
    rows = np.ceil(points[:, 1] - 0.5).clip(0, size[0]).astype(int)  # the first center below
    top, bottom = rows.min(initial=size[0]), rows.max(initial=0)
    inside = np.zeros((max(bottom - top, 0), size[1]), bool)
    centers = np.arange(size[1]) + 0.5
    for i, (x, y) in enumerate(points):
        (last_x, last_y), first, last = points[i - 1], *sorted((rows[i - 1], rows[i]))
        down = np.arange(first, last) + 0.5 - y
        crossing = x + down * (last_x - x) / (last_y - y) if len(down) else down
        inside[first - top : last - top] ^= centers < crossing[:, None]
    return slice(top, bottom), inside


def _pixels(shape: Any, size: tuple[int, int]) -> np.ndarray:
    """Return pixels (H, W), also of labelme's PNGs and of COCO's run lengths by column."""
    if isinstance(shape, np.ndarray):
        return shape
    if "mask" in shape:
        canvas = Image.new("L", (size[1], size[0]))
        with Image.open(io.BytesIO(base64.b64decode(shape["mask"]))) as png:
            left, top = map(round, shape["points"][0])
            canvas.paste(png.convert("L"), (left, top))
        return np.array(canvas) > 0
    counts = shape["counts"]
    _require_size(tuple(shape.get("size", size)), [size])  # before an array of this size exists
    if isinstance(counts, list):
        return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(size, order="F")
    try:
        from pycocotools import mask as masks
    except ImportError:
        raise ValueError("compressed run lengths need: pip install pycocotools") from None
    return masks.decode(shape) > 0  # type: ignore  # its types demand a TypedDict


class Coco(Polygons):
    """COCO files; categories follow the background by id, and small objects cover large ones."""

    suffixes = (".json",)

    def __init__(self, paths: Sequence[Path]):
        self.files = []
        names: dict[str, None] = {BACKGROUND: None}
        for path in paths:
            split = split_in(path.stem)  # instances_val.json: its images are of the split val
            try:
                content = json.loads(path.read_bytes())  # UTF-8, also with a byte order mark
                categories = {c["id"]: _label(c["name"]) for c in content["categories"]}
                names |= {categories[i]: None for i in sorted(categories)}
                shapes = defaultdict(list)
                for shape in content["annotations"]:
                    shapes[str(shape["image_id"])].append(shape)  # some files mix "3" and 3
                for image in content["images"]:
                    own, name = key_of(Path(image["file_name"].replace("\\", "/")))
                    described = (image, shapes[str(image["id"])], categories)
                    annotation = Annotation(path, image["file_name"], described)
                    self.files.append(((own or split, name), annotation))
                known = {str(image["id"]) for image in content["images"]}
                for number in sorted(shapes.keys() - known):  # `find_pairs` lists them as left out
                    self.files.append(((split, ""), Annotation(path, f"of id {number}")))
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                reason = error if isinstance(error, ValueError) else repr(error)
                text = f"{path}: is not a COCO file ({reason}); export polygons or masks as COCO"
                raise ValueError(text) from error
        self.labels, self.colors = dict(enumerate(names)), {}

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        image, shapes, categories = annotation.content
        # The files' order means nothing: a house after its windows would cover them.
        large_first = sorted(shapes, key=lambda shape: -float(shape.get("area") or 0))
        named = [(categories[s["category_id"]], s["segmentation"]) for s in large_first]
        return (int(image["height"]), int(image["width"])), named


class Labelme(Polygons):
    """labelme's JSON files with polygons and rectangles; the labels are in alphabetical order."""

    suffixes = (".json",)

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        found = super().prepare(annotations)
        self.labels = dict(enumerate([BACKGROUND, *sorted(set().union(*found) - {BACKGROUND})]))
        return found

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        content = json.loads(annotation.path.read_bytes())
        shapes = []
        for shape in content["shapes"]:
            points, kind = np.array(shape["points"], float), shape.get("shape_type") or "polygon"
            if kind == "rectangle":  # two corners
                (left, top), (right, bottom) = points.min(0), points.max(0)
                points = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
            elif kind == "circle":  # its center, and a point on it
                turn = np.linspace(0, 2 * np.pi, 720)[:, None]  # within 1e-5 of the radius
                radius = np.hypot(*(points[1] - points[0]))
                points = points[0] + radius * np.hstack([np.cos(turn), np.sin(turn)])
            elif kind not in ("polygon", "oriented_rectangle", "mask"):
                raise ValueError(f"a {kind}; only polygons, boxes, circles and masks are read")
            form = shape if kind == "mask" else [points.ravel().tolist()]
            shapes.append((_label(shape["label"]), form))
        return (int(content["imageHeight"]), int(content["imageWidth"])), shapes


class ClassMasks(Polygons):
    """Masks of one class each, which `Annotation.content` has by class; 0 is not the class.

    Where masks overlap, the class with fewer pixels in all masks counts.
    """

    def __init__(self, annotations: Sequence[Annotation]):
        """Read a few of the annotations.

        Raises:
            LabelError: if their masks are not of one class each.
        """
        names = {name for annotation in annotations for name in annotation.content} - {BACKGROUND}
        self.labels, self.colors = dict(enumerate([BACKGROUND, *sorted(names)])), {}
        self._pixels = Counter()  # of each class
        for annotation in annotations[:: -(-len(annotations) // _READ)]:
            self.shapes(annotation)

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        def labels(annotation: Annotation) -> set[str]:
            pixels = Counter({name: int(mask.sum()) for name, mask in self.shapes(annotation)[1]})
            self._pixels += pixels
            return {BACKGROUND, *+pixels}  # without classes of no pixel

        found = self._read_each(annotations, labels)
        order = ", ".join(name for name, _ in reversed(self._pixels.most_common()))
        masks = sum(1 + len(annotation.objects) for annotation in annotations)
        self.notes = [
            f"{masks} masks of one class each became {len(found)} label maps; where they overlap, "
            f"the first of these counts: {order}"
        ]
        return found

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        masks: dict[str, np.ndarray] = {}
        for name, paths in annotation.content.items():
            for path in paths:
                with _reading(Annotation(path)):
                    codes = _codes_of(path)
                    _require_size(codes.shape, [m.shape for m in masks.values()] or [codes.shape])
                    if (count := np.count_nonzero(_index(_values(codes)))) > 1:
                        raise ValueError(f"the mask of one class has {count} values other than 0")
                    masks[name] = (_index(codes) > 0) | masks.get(name, False)
        rare_last = sorted(masks.items(), key=lambda part: -self._pixels[part[0]])
        return next(iter(masks.values())).shape, rare_last
