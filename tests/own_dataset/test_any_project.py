"""A project has the label maps that its annotations describe, whatever their format and names."""

import json
import tempfile
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmseg_ext.datasets.nuclei import draw_labels
from mmseg_ext.own_dataset.annotations.coco import Coco
from mmseg_ext.own_dataset.annotations.geojson import Geojson
from mmseg_ext.own_dataset.annotations.labelme import Labelme
from mmseg_ext.own_dataset.annotations.masks import ClassMasks, Masks
from mmseg_ext.own_dataset.annotations.reader import OBJECT_VALUES, Reader
from mmseg_ext.own_dataset.annotations.yolo import Yolo
from mmseg_ext.own_dataset.project import make_project
from mmseg_ext.own_dataset.splits import SplitRule
from tests.datasets.trees import random_image, save

KINDS = ["background", "cat", "big dog", "öl"]
PIXELS = ["gray", "gray colors", "palette", "other palettes", "colors"]  # of any label map
MASKS = [*PIXELS, "binary", "objects", "classes"]
SHAPES = ["polygons", "run lengths", "labelme", "yolo", "geojson"]
# The photo, and the file of its annotation without suffix.
LAYOUTS = {
    "folders": ("images/{}.png", "masks/{}"),
    "splits": ("images/{split}/{}.png", "masks/{split}/{}"),
    "endings": ("images/{}_photo.png", "masks/{}_label"),
    "one folder": ("all/{}.jpg", "all/{}"),
    "a folder each": ("all/{}/photo.jpg", "all/{}/label"),
}
NAMES = ["{}", "img_00{}", "scene{}_left", "Gebäude {}", "a.b-{}", "IMG {} (1)"]
# EXIF's orientations, and the quarter turns from the upright to the stored photo.
TURNS = {1: 0, 3: 2, 6: 1, 8: 3}


class Case(NamedTuple):
    """Photos and their annotations on disk."""

    kind: str
    layout: str
    name: str
    change: str  # of the annotations' names: "", "NFD" or "upper"
    deep: bool  # 16 bits instead of 8
    turn: int  # the photos' orientation
    is_stored: bool  # whether masks lie as the photos' files
    objects: bool  # whether shapes are objects, whatever their names are
    seed: int


@st.composite
def cases(draw, kind: str) -> Case:
    turn = draw(st.sampled_from([*TURNS]))
    layouts = set(LAYOUTS)
    if kind in ("polygons", "run lengths", "yolo"):  # their files have the photos' complete names
        layouts -= {"endings", "a folder each"}
    return Case(
        kind,
        draw(st.sampled_from(sorted(layouts))),
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from(["", "NFD", "upper"])),
        draw(st.booleans()),
        turn,
        turn in (6, 8) and kind in MASKS and draw(st.booleans()),
        kind in SHAPES and draw(st.booleans()),
        draw(st.integers(0, 99)),
    )


def write(folder: Path, case: Case) -> tuple[Path, Reader, dict[Path, np.ndarray]]:
    """Write a case; return the photos' folder, the reader, and the texts (H, W) of each photo."""
    rng = np.random.RandomState(case.seed)
    image, annotation = LAYOUTS[case.layout]
    images = folder / image.partition("/")[0]
    masks = folder / annotation.partition("/")[0]
    size = tuple(map(int, rng.permutation([rng.randint(9, 14), rng.randint(15, 24)])))
    is_deep = case.deep and case.kind == "gray"
    limit = 2**16 if is_deep else 255  # 255 can mean that pixels are ignored
    values = np.sort(rng.choice(limit, len(KINDS), replace=False))
    colors = rng.randint(0, 256, (len(KINDS), 3)).astype(np.uint8)
    expected, listed, objects = {}, [], []
    for i in range(1, 5):
        name, split = case.name.format(i), ["train", "val"][i % 2]
        photo = folder / image.format(name, split=split)
        stored = size[::-1] if case.turn >= 5 else size
        save(photo, random_image(rng, stored[::-1]), orientation=case.turn)
        other = {"": name, "NFD": unicodedata.normalize("NFD", name), "upper": name.upper()}
        file = folder / annotation.format(other[case.change], split=split)
        # Rectangles, large ones first, and what is left of each.
        boxes = []
        for kind in rng.randint(1, len(KINDS), rng.randint(1, 6)):
            top, left = rng.randint(0, size[0] - 2), rng.randint(0, size[1] - 2)
            bottom, right = rng.randint(top + 1, size[0]), rng.randint(left + 1, size[1])
            boxes.append((int(kind), (int(left), int(top), int(right), int(bottom))))
        areas = {(b[1][2] - b[1][0]) * (b[1][3] - b[1][1]): b for b in boxes}  # no two are equal
        boxes = [areas[area] for area in sorted(areas, reverse=True)]
        label, numbers = np.zeros(size, np.uint8), np.zeros(size, np.uint16)
        for number, (kind, (left, top, right, bottom)) in enumerate(boxes, start=1):
            label[top:bottom, left:right] = kind
            numbers[top:bottom, left:right] = number
        if case.kind in PIXELS:
            label = rng.randint(0, len(KINDS), size).astype(np.uint8)
        texts = np.array(KINDS)[label]
        if case.objects:
            texts = np.array(OBJECT_VALUES)[draw_labels(numbers)]
        if case.kind in MASKS:
            texts = write_mask(file, case, i, label, numbers, values, colors)
        elif case.kind in ("polygons", "run lengths"):
            suffix = photo.suffix.upper() if case.change == "upper" else photo.suffix
            listed.append(dict(id=i, file_name=f"{file.relative_to(masks)}{suffix}"))
            listed[-1].update(height=size[0], width=size[1])
            for kind, box in boxes:
                form = [np.ravel(corners(box)).tolist()]
                if case.kind == "run lengths":
                    form = run_lengths(box, size)
                objects.append(dict(image_id=i, category_id=kind, segmentation=form))
        else:
            write_shapes(file, case.kind, boxes, size)
        expected[photo] = texts
    if listed:
        categories = [dict(id=i, name=kind) for i, kind in enumerate(KINDS) if i]
        content = dict(images=listed, annotations=objects, categories=categories)
        masks = write_json(folder / "coco.json", content)
    elif case.kind == "yolo":
        (folder / "data.yaml").write_text(f"names: {json.dumps(KINDS)}")
    return images, find(case, masks), expected


def write_mask(file, case, number, label, numbers, values, colors) -> np.ndarray:
    """Write a mask as a PNG, or a TIFF of 16 bits; return the texts of its values."""
    texts = np.array(KINDS)[label]
    palette, path = None, file.with_name(f"{file.name}.png")
    turns = TURNS[case.turn] * case.is_stored
    pixels = label
    if case.kind == "gray":
        pixels = values[label].astype(np.uint16 if case.deep else np.uint8)
        texts = values.astype(str)[label]
    elif case.kind == "gray colors":
        pixels = np.repeat(values[label][..., None], 3, axis=2).astype(np.uint8)
        texts = values.astype(str)[label]
    elif case.kind in PIXELS:
        texts = np.array([f"#{r:02x}{g:02x}{b:02x}" for r, g, b in colors])[label]
        if case.kind == "colors":
            pixels = colors[label]
        elif case.kind == "palette":  # the same in all masks
            palette, texts = colors, label.astype(str)
        else:  # an index has another color in another mask
            palette = np.roll(colors, number, 0)
            pixels = (label + number) % np.uint8(len(KINDS))
    elif case.kind == "binary":
        smooth = np.where(label > 0, 200, 90) + label  # as of blurred edges
        pixels = (smooth * (257 if case.deep else 1)).astype(np.uint16 if case.deep else np.uint8)
        texts = np.where(label > 0, "255", "0")
    elif case.kind == "objects":
        pixels = numbers * np.uint16(300) if case.deep else numbers.astype(np.uint8)
        borders = draw_labels(np.rot90(numbers, turns).copy())  # it depends on the direction
        texts = np.array(OBJECT_VALUES)[np.rot90(borders, -turns)]
    turned = np.ascontiguousarray(np.rot90(pixels, turns))
    if case.kind == "classes":
        for kind in range(1, len(KINDS)):
            # A class reaches under those that follow it.
            of_class = (turned == kind) | (turned > kind) & (np.indices(turned.shape)[0] % 2 == 0)
            save(
                path.with_name(f"{file.name}_class{kind}.png"), of_class * np.uint8(90 * kind - 15)
            )
    else:
        save(path.with_suffix(".tif") if pixels.dtype == np.uint16 else path, turned, palette)
    return texts


def write_shapes(file: Path, kind: str, boxes, size) -> None:
    path = file.with_name(file.name + {"yolo": ".txt", "geojson": ".geojson"}.get(kind, ".json"))
    if kind == "yolo":
        lines = []
        for number, box in boxes:
            shares = np.array(corners(box)) / size[::-1]
            lines.append(" ".join(map(str, [number, *shares.ravel().tolist()])))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
        return
    shapes, features = [], []
    for number, box in boxes:
        points, name = corners(box), KINDS[number]
        shapes.append(dict(label=name, points=points))
        geometry = dict(type="Polygon", coordinates=[[*points, points[0]]])
        features.append(dict(geometry=geometry, properties=dict(classification=dict(name=name))))
    labelme = dict(shapes=shapes, imageHeight=size[0], imageWidth=size[1])
    write_json(path, labelme if kind == "labelme" else dict(features=features))


def write_json(path: Path, content) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def corners(box) -> list[list[float]]:
    """Return corners between the centers of pixels."""
    left, top, right, bottom = (side + 0.3 for side in box)
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def run_lengths(box, size) -> dict:
    left, top, right, bottom = box
    mask = np.zeros(size, int)
    mask[top:bottom, left:right] = 1
    starts = [0, *np.flatnonzero(np.diff(mask.ravel("F"), prepend=0)), mask.size]
    return dict(size=list(size), counts=np.diff(starts).tolist())


def find(case: Case, source: Path) -> Reader:
    """Return the annotations, as the flags of the command find them."""
    if case.kind == "classes":
        patterns = {kind: source / f"*_class{i}.png" for i, kind in enumerate(KINDS) if i}
        return ClassMasks.find(patterns)
    kinds = {"labelme": Labelme, "yolo": Yolo, "geojson": Geojson}
    if case.kind in ("polygons", "run lengths"):
        reader = Coco.find([source])
    else:
        reader = kinds.get(case.kind, Masks).find(source)
    if case.kind == "binary":
        reader.binary = True
    reader.objects = case.objects or case.kind == "objects"
    return reader


@pytest.mark.parametrize("kind", [*MASKS, *SHAPES])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_project_has_the_label_maps_of_its_annotations(kind, data):
    case = data.draw(cases(kind))
    with tempfile.TemporaryDirectory() as folder:
        images, reader, expected = write(Path(folder), case)
        made = make_project(Path(folder) / "project", images, reader, SplitRule(0.5))
        numbers = made.classes.numbers
        assert [item.problem for item in made.items if item.problem] == []
        assert {item.image for item in made.items} == expected.keys()
        for item in made.items:
            label = np.array(Image.open(item.sample["seg_map_path"]))
            texts, found = np.unique(expected[item.image], return_inverse=True)
            wanted = np.array([numbers[text] for text in texts])[found]
            assert np.array_equal(label, wanted.reshape(label.shape))
