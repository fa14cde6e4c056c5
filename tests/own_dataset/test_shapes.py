"""Files with shapes: what their pixels say counts, not a field that can be wrong."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from mmseg_ext.datasets.nuclei import draw_labels
from mmseg_ext.errors import LabelError
from mmseg_ext.inference.objects import find_objects, geojson
from mmseg_ext.own_dataset.annotations.coco import Coco
from mmseg_ext.own_dataset.annotations.geojson import Geojson
from mmseg_ext.own_dataset.annotations.labelme import Labelme
from mmseg_ext.own_dataset.annotations.reader import IndexMap, draw_objects
from mmseg_ext.own_dataset.annotations.yolo import Yolo
from mmseg_ext.own_dataset.item import usable
from mmseg_ext.own_dataset.pairs import list_items, pair
from tests.datasets.trees import random_image, save
from tests.messages import lines_with, raises_message
from tests.own_dataset.test_project import label_maps, run

SIZE = (30, 40)  # height and width
NAMES = ["house", "window", "door"]
OBJECTS = [(1, (12, 8, 18, 14)), (0, (5, 3, 35, 25)), (2, (20, 15, 26, 27))]  # small, large, medium


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch):
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)


def expected() -> np.ndarray:
    label = np.zeros(SIZE, np.uint8)
    for kind, (left, top, right, bottom) in [OBJECTS[1], OBJECTS[2], OBJECTS[0]]:
        label[top:bottom, left:right] = kind + 1
    return label


def corners(box) -> list[list[int]]:
    left, top, right, bottom = box
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def flat(box) -> list[int]:
    return np.ravel(corners(box)).tolist()


def lengths(box) -> dict:
    left, top, right, bottom = box
    mask = np.zeros(SIZE, int)
    mask[top:bottom, left:right] = 1
    starts = [0, *np.flatnonzero(np.diff(mask.ravel("F"), prepend=0)), mask.size]
    return dict(size=[*SIZE], counts=np.diff(starts).tolist())


def write_json(path: Path, content) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def coco(file_name="a.jpg", form=lambda box: [flat(box)], image=None, **fields) -> dict:
    """Return the objects as a COCO file of an image."""
    entry = dict(height=SIZE[0], width=SIZE[1]) if image is None else image
    objects = []
    for kind, box in OBJECTS:
        objects.append(dict(image_id=1, category_id=kind, segmentation=form(box), **fields))
    return dict(
        images=[dict(id=1, file_name=file_name, **entry)],
        annotations=objects,
        categories=[dict(id=i, name=name) for i, name in enumerate(NAMES)],
    )


def labelme(**fields) -> dict:
    shapes = [dict(label=NAMES[kind], points=corners(box)) for kind, box in OBJECTS]
    large_first = [shapes[1], shapes[2], shapes[0]]
    return dict(imageHeight=SIZE[0], imageWidth=SIZE[1], shapes=large_first) | fields


def yolo(objects=OBJECTS) -> str:
    lines = []
    for kind, box in objects:
        shares = np.array(corners(box)) / SIZE[::-1]
        lines.append(" ".join(map(str, [kind, *shares.ravel().tolist()])))
    return "\n".join(lines)


def feature(name, *rings, kind="Polygon", **properties) -> dict:
    closed = [[*ring, ring[0]] for ring in rings]
    if name:
        properties["classification"] = dict(name=name, color=[200, 10, NAMES.index(name)])
    properties["objectType"] = "annotation"
    return dict(type="Feature", geometry=dict(type=kind, coordinates=closed), properties=properties)


def read(reader, sizes=(SIZE,)):
    """Return the numbers of the classes in a reader's only annotation, and the notes on it."""
    (annotation,) = reader.annotations
    found = reader.read(annotation, sizes)
    stored = found.store(annotation, Path(annotation.path).with_name("stored"))
    legend = reader.describe([stored])
    numbers = {text: number for number, text in legend.labels.items()}
    table = np.array([numbers[legend.texts[value]] for value in found.values])
    return table[found.indices], list(found.notes)


WRONG_AREAS = {"none": {}, "zero": dict(area=0), "image": dict(area=1200), "text": dict(area="?")}


@pytest.mark.parametrize("form", [lambda box: [flat(box)], flat, corners, lengths])
@pytest.mark.parametrize("area", WRONG_AREAS)
def test_small_objects_of_coco_cover_large_ones(area, form, tmp_path):
    """By their shapes: an area can be missing or wrong, and a list can be flat or of points."""
    path = write_json(tmp_path / "a.json", coco(form=form, **WRONG_AREAS[area]))
    label, notes = read(Coco.find([path]))
    assert np.array_equal(label, expected()) and not notes


@pytest.mark.parametrize("folder", ["a", "."])
def test_panoptic_coco(folder, tmp_path):
    """A color of the PNG is the number of a segment; 0 and unknown numbers are background."""
    numbers = [7, 300, 70_000]  # of OBJECTS, as red, green and blue below
    colors = np.array([[0, 0, 0], [44, 1, 0], [7, 0, 0], [112, 17, 1], [9, 9, 9]], np.uint8)
    mask = expected()  # house, window and door are 1, 2 and 3
    mask[0, :9] = 4
    save(tmp_path / folder / "b.png", colors[mask])
    content = coco(form=lambda box: [])
    segments = []
    for number, (kind, _) in zip(numbers, OBJECTS, strict=True):
        segments.append(dict(id=number, category_id=kind))
    content["annotations"] = [dict(image_id=1, file_name="b.png", segments_info=segments)]
    path = write_json(tmp_path / "a.json", content)
    label, notes = read(Coco.find([path]))
    assert np.array_equal(label, expected()) and not notes
    # What is not a thing, here the house, is no object.
    content["categories"][0]["isthing"] = 0
    reader = Coco.find([write_json(path, content)])
    reader.objects = True
    found = draw_objects(reader.read(reader.annotations[0], [SIZE]))
    assert np.array_equal(
        found.indices, draw_labels(np.where(mask % 4 > 1, mask, 0) % np.uint16(4))
    )
    (tmp_path / folder / "b.png").unlink()
    with raises_message(LabelError, tmp_path / "b.png", where=path):
        read(Coco.find([path]))


@pytest.mark.parametrize("form", [lambda box: [flat(box)], lengths])
def test_stuff_is_no_object(form, tmp_path):
    """With `--objects` only things are, of which each is one, also of equal categories."""
    content = coco(form=form)
    content["categories"] = [dict(id=i, name="ab"[i > 0], isthing=int(i > 0)) for i in range(3)]
    reader = Coco.find([write_json(tmp_path / "a.json", content)])
    reader.objects = True
    found = draw_objects(reader.read(reader.annotations[0], [SIZE]))
    numbers = np.where(expected() > 1, expected(), 0).astype(np.uint16)
    assert np.array_equal(found.indices, draw_labels(numbers)) and found.indices.max() == 2


def test_ignored_pixels_are_no_objects():
    """Their value stays, once if several shapes have it."""
    indices = np.zeros((9, 30), np.uint8)
    indices[:, 3:6], indices[:, 20:24], indices[:, 27:] = 1, 2, 3
    found = draw_objects(IndexMap(["background", "void", "a", "void"], indices), ["void"])
    assert found.values == ["no object", "object", "border", "void"]
    assert np.array_equal(found.indices, np.array([0, 3, 1, 3])[indices])


def test_groups_of_labelme_are_objects(tmp_path):
    """Parts of one label and number; without --objects nothing changes."""
    boxes = [(0, 0, 8, 8), (20, 0, 28, 8), (0, 15, 8, 23), (20, 15, 28, 23)]
    groups = [1, 1, None, None]
    shapes = []
    for box, group in zip(boxes, groups, strict=True):
        shapes.append(dict(label="leaf", points=corners(box), group_id=group))
    shapes.append(dict(label="stem", points=corners((32, 0, 38, 8)), group_id=1))
    write_json(tmp_path / "a.json", labelme(shapes=shapes))
    reader = Labelme.find(tmp_path)
    plain, _ = read(reader)
    assert np.unique(plain).tolist() == [0, 1, 2]
    reader.objects = True
    found = reader.read(reader.annotations[0], [SIZE])
    assert list(found.values) == ["background", "leaf", "leaf", "leaf", "stem"]
    numbers = [found.indices[top + 2, left + 2] for left, top, _, _ in [*boxes, (32, 0, 38, 8)]]
    assert numbers == [1, 1, 2, 3, 4]


def test_crowds_are_objects(tmp_path):
    """A segmentation's form counts, not `iscrowd`, which says that there are several objects."""
    for crowd, form in ((1, flat), (0, lengths), (1, lengths)):
        path = write_json(tmp_path / "a.json", coco(form=form, iscrowd=crowd))
        assert np.array_equal(read(Coco.find([path]))[0], expected())


@pytest.mark.parametrize("image", [{}, dict(height=0, width=0), dict(height=40, width=30)])
def test_a_wrong_size_in_a_file(image, tmp_path):
    """None, or one that the shapes contradict: sides that are exchanged."""
    path = write_json(tmp_path / "a.json", coco(image=image))
    assert np.array_equal(read(Coco.find([path]))[0], expected())
    sides = dict(imageHeight=image.get("height"), imageWidth=image.get("width"))
    write_json(tmp_path / "x/a.json", labelme(**sides))
    assert np.array_equal(read(Labelme.find(tmp_path / "x"))[0], np.array([0, 2, 3, 1])[expected()])


@pytest.mark.parametrize("size", [(60, 80), (15, 20)])
def test_an_image_of_another_size_is_left_out(size, tmp_path):
    """Nobody can tell whether the shapes belong to it."""
    path = write_json(tmp_path / "a.json", coco())
    with raises_message(LabelError, "40x30", f"{size[1]}x{size[0]}", where=path, todo=True):
        read(Coco.find([path]), [size])


@pytest.mark.parametrize("declared", [(30, 40), (40, 30), ("", "")])
def test_shapes_of_a_turned_photo(declared, tmp_path):
    """The size tells whether they are upright, unless they reach over it."""
    turned = 30, 40
    upright = 40, 30
    path = write_json(
        tmp_path / "a.json", coco(image=dict(zip(("height", "width"), declared, strict=True)))
    )
    label, notes = read(Coco.find([path]), [upright, turned])
    assert np.array_equal(label, expected())  # 35 pixels wide, so it is the turned photo
    assert not notes
    low = write_json(tmp_path / "a.json", labelme(shapes=[], imageHeight=40, imageWidth=30))
    label, notes = read(Labelme.find(low.parent), [upright, turned])
    assert label.shape == upright and not notes


@pytest.mark.parametrize("stored", [SIZE, SIZE[::-1]])
def test_polygons_of_label_studio_on_a_turned_photo(stored, tmp_path):
    """It multiplies shares of the upright photo by the sides of the file, without its EXIF."""
    factors = np.array(stored[::-1]) / SIZE[::-1]
    content = coco(
        form=lambda box: [(np.array(corners(box)) * factors).ravel().tolist()],
        image=dict(height=stored[0], width=stored[1]),
    )
    content["info"] = dict(year=2026, version="1.0", contributor="Label Studio")
    path = write_json(tmp_path / "result.json", content)
    label, notes = read(Coco.find([path]), [SIZE, SIZE[::-1]])
    assert np.array_equal(label, expected()) and not notes


@pytest.mark.parametrize("flag", ["labelme", "yolo"])
def test_shapes_over_the_border_do_not_turn_a_photo(flag, tmp_path):
    """As a circle near the border; these tools draw on the upright photo."""
    upright = 40, 30
    if flag == "yolo":
        (tmp_path / "a.txt").write_text(yolo([(0, (30, 5, 44, 15))]))  # to 1.1 of the width
        reader = Yolo.find(tmp_path)
    else:
        circle = dict(label="house", shape_type="circle", points=[[26, 12], [26, 22]])
        sides = dict(imageHeight=upright[0], imageWidth=upright[1])
        write_json(tmp_path / "a.json", labelme(shapes=[circle], **sides))
        reader = Labelme.find(tmp_path)
    label, notes = read(reader, [upright, SIZE])
    assert label.shape == upright and label[12, 29] and not notes


def test_shapes_without_a_size_on_a_turned_photo_are_a_note(tmp_path):
    """They fit the upright and the turned photo."""
    small = [feature("house", corners((5, 5, 20, 20)))]
    write_json(tmp_path / "a.json", small)
    label, notes = read(Geojson.find(tmp_path), [SIZE, SIZE[::-1]])
    assert label.shape == SIZE and len(notes) == 1
    for sizes in ([SIZE], [(40, 40), (40, 40)]):
        assert not read(Geojson.find(tmp_path), sizes)[1]
    write_json(tmp_path / "a.json", [])
    assert not read(Geojson.find(tmp_path), [SIZE, SIZE[::-1]])[1]
    write_json(tmp_path / "a.json", [*small, feature("door", corners((30, 5, 35, 20)))])
    label, notes = read(Geojson.find(tmp_path), [SIZE, SIZE[::-1]])
    assert label.shape == SIZE and not notes


FILE_NAMES = [
    "images/{}",
    "images\\{}",
    "C:\\photos\\{}",
    "/home/me/{}",
    "./{}",
    "https://host/x/{}",
]


@pytest.mark.parametrize("file_name", FILE_NAMES)
def test_file_names_with_paths(file_name, tmp_path):
    content = coco()
    for i, name in enumerate(("a 1.jpg", "b.jpg")):
        save_photos(tmp_path, [Path(name).stem])
        content["images"].append(dict(content["images"][0], id=i, file_name=file_name.format(name)))
    del content["images"][0]
    reader = Coco.find([write_json(tmp_path / "a.json", content)])
    items = list_items(tmp_path / "images", reader, tmp_path)
    assert not pair(items, reader)
    assert [item.name for item in usable(items)] == ["a 1", "b"]


def test_shapes_without_an_area_are_skipped_and_counted(tmp_path, capsys):
    """Also polygons of two points; the photo keeps its other shapes."""
    save_photos(tmp_path, "abc")
    content = labelme()
    kinds = dict(point=1, line=2, linestrip=4, points=3, polygon=2)
    for kind, count in kinds.items():
        shape = dict(
            label="scratch", shape_type=kind, points=[[9, 9], [9, 1], [7, 7], [8, 3]][:count]
        )
        content["shapes"] += [shape, shape]
    for name in "abc":
        write_json(tmp_path / f"masks/{name}.json", content)
    assert run(tmp_path, "--labelme", str(tmp_path / "masks")) == 0
    out = capsys.readouterr().out
    assert "left out" not in out and "scratch" not in out
    for kind in kinds:
        (line,) = lines_with(out, "note", f"a {kind}", 6)
        assert "a.json" in line
    for label in label_maps(tmp_path).values():
        assert np.array_equal(label, np.array([0, 2, 3, 1])[expected()])  # alphabetical


@pytest.mark.filterwarnings("error:Image size")
def test_masks_of_labelme_above_pillows_limit(tmp_path, monkeypatch):
    file = io.BytesIO()
    Image.fromarray(expected() == 1).save(file, "PNG")
    mask = dict(label="house", shape_type="mask", points=[[0, 0], [39, 29]])
    mask["mask"] = base64.b64encode(file.getvalue()).decode()
    write_json(tmp_path / "a.json", labelme(shapes=[mask]))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    label, _ = read(Labelme.find(tmp_path))
    assert np.array_equal(label, expected() == 1) and Image.MAX_IMAGE_PIXELS == 9


def save_photos(folder: Path, names) -> None:
    for i, name in enumerate(names):
        save(folder / f"images/{name}.jpg", random_image(np.random.RandomState(i), SIZE[::-1]))


def test_shapes_elsewhere_are_a_note(tmp_path):
    """As with the coordinates of a map, or those of a part of the image."""
    write_json(tmp_path / "a.json", [feature("house", corners((500, 700, 800, 900)))])
    label, notes = read(Geojson.find(tmp_path))
    assert not label.any() and len(notes) == 1


YOLO_LAYOUTS = {  # the folders of images and labels, --images, --yolo, the yaml
    "Ultralytics": ("images/{}", "labels/{}", "images", "labels", "data.yaml"),
    "Roboflow": ("{}/images", "{}/labels", ".", ".", "data.yaml"),
    "one folder": ("all/{}", "all/{}", "all", "all", "dataset.yml"),
    "above": ("data/images/{}", "data/labels/{}", "data/images", "data/labels", "coco8.yaml"),
}


@pytest.mark.parametrize(
    ("layout", "names"), list(zip(YOLO_LAYOUTS, ["list", "dict", "none", "list"], strict=True))
)
def test_yolo(layout, names, tmp_path, capsys):
    """Also a photo without objects, with an empty file."""
    images, labels, photos, annotations, yaml = YOLO_LAYOUTS[layout]
    for i, split in enumerate(("train", "train", "train", "val")):
        image = tmp_path / images.format(split) / f"a.b_{i}.jpg"
        save(image, random_image(np.random.RandomState(i), SIZE[::-1]))
        label = tmp_path / labels.format(split) / f"a.b_{i}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(yolo() if i else "\n")
    given = {"list": "[house, window, door, roof]", "dict": "{2: door, 0: house, 1: window}"}
    if names != "none":
        (tmp_path / yaml).write_text(f"path: elsewhere\ntrain: x\nnames: {given[names]}\n")
    flags = ["--images", str(tmp_path / photos), "--yolo", str(tmp_path / annotations)]
    assert run(tmp_path, *flags) == 0
    out = capsys.readouterr().out
    assert "left out" not in out
    expected_names = {"list": [*NAMES, "roof"], "dict": NAMES, "none": ["0", "1", "2"]}[names]
    classes = Config.fromfile(tmp_path / "project/config.py").classes
    assert classes == ["background", *expected_names]
    found = label_maps(tmp_path)
    assert {name.partition("/")[0] for name in found} == {"train", "val"} and len(found) == 4
    for name, label in found.items():
        assert np.array_equal(label, expected() * (name[-1] != "0"))


@pytest.mark.parametrize("kind", ["collection", "list"])
def test_geojson_of_qupath(kind, tmp_path):
    """Holes stay free, parts belong together, and what has no area or no class is counted."""
    house = corners(OBJECTS[1][1])
    hole = corners((10, 6, 30, 20))
    features = [
        feature("window", corners(OBJECTS[0][1])),
        feature("house", house, hole, corners((31, 4, 34, 6))[::-1]),
        feature("", corners((0, 0, 40, 30))),
        feature("door", corners((0, 0, 2, 2))),
        feature("window", [3, 3]),
    ]
    parts = [[[*ring, ring[0]]] for ring in map(corners, ((20, 15, 26, 19), (36, 2, 39, 9)))]
    features[3]["geometry"] = dict(type="MultiPolygon", coordinates=parts)
    features[4]["geometry"] = dict(type="Point", coordinates=[3, 3])
    content = dict(type="FeatureCollection", features=features) if kind != "list" else features
    path = write_json(tmp_path / "a.geojson", content)
    reader = Geojson.find(tmp_path)
    found = reader.read(reader.annotations[0], [SIZE])
    wanted = np.zeros(SIZE, int)
    wanted[3:25, 5:35], wanted[6:20, 10:30], wanted[4:6, 31:34] = 1, 0, 0
    wanted[8:14, 12:18], wanted[15:19, 20:26], wanted[2:9, 36:39] = 2, 3, 3
    labels = np.array(["background", "house", "window", "door"])
    assert np.array_equal(np.array(found.values)[found.indices], labels[wanted])
    assert sorted("Point" in note for note in found.notes) == [False, True]
    legend = reader.describe([found.store(reader.annotations[0], path.with_name("stored"))])
    assert legend.colors == {name: f"#c80a0{i}" for i, name in enumerate(NAMES)}


def test_unknown_parts_of_geojson_are_passed_over(tmp_path):
    """As a feature without a geometry, a collection, and members that QuPath does not write."""
    square = feature("house", corners((5, 5, 20, 20)), measurements=[1], locked=None)
    empty = square | dict(geometry=None)
    several = square | dict(geometry=dict(type="GeometryCollection", geometries=[]))
    content = dict(features=[empty, square, several], crs=dict(x=1), name="a")
    write_json(tmp_path / "a.geojson", content)
    label, notes = read(Geojson.find(tmp_path))
    assert label.sum() == 225 and len(notes) == 2


def test_objects_of_image_demo_are_read_again(tmp_path):
    """With holes; QuPath finds their class and color."""
    label = (np.random.RandomState(0).rand(*SIZE) < 0.7).astype(np.uint8)
    content = geojson(find_objects(label, 1, "house"), {"house": [1, 2, 3]})
    for found in content["features"]:
        assert found["properties"]["objectType"] == "annotation"
        assert found["properties"]["classification"] == dict(name="house", color=[1, 2, 3])
    write_json(tmp_path / "a.geojson", content)
    reader = Geojson.find(tmp_path)
    assert np.array_equal(read(reader)[0], label) and reader.colors == {"house": "#010203"}


@pytest.mark.parametrize("kind", ["labelme", "yolo", "geojson", "coco"])
def test_photos_without_an_annotation(kind, tmp_path, capsys):
    """They are left out, with the flag that makes them background."""
    save_photos(tmp_path, "abcd")
    for name in "abc":
        folder = tmp_path / "masks"
        if kind == "yolo":
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.txt").write_text(yolo())
        elif kind == "labelme":
            write_json(folder / f"{name}.json", labelme())
        elif kind == "geojson":
            features = [feature(NAMES[i], corners(box)) for i, box in OBJECTS]
            write_json(folder / f"{name}.geojson", features)
        else:
            write_json(folder / f"{name}.json", coco(f"{name}.jpg"))
    source = sorted(map(str, folder.glob("*"))) if kind == "coco" else [str(folder)]
    flags = [f"--{kind}", *source]
    assert run(tmp_path, *flags) == 0
    assert len(label_maps(tmp_path)) == 3
    assert lines_with(capsys.readouterr().out, "d.jpg", "--background-without-annotation")
    assert run(tmp_path, *flags, "--background-without-annotation") == 0
    out = capsys.readouterr().out
    assert "left out" not in out and lines_with(out, "note", "d.jpg: a photo without")
    found = {name[-1]: label for name, label in label_maps(tmp_path).items()}
    assert not found["d"].any() and all(found[name].any() for name in "abc")


def test_names_of_several_yolo_files(tmp_path):
    """`data.yaml` counts first; a note says where the names are from."""
    write_json(tmp_path / "labels/a.txt", "")
    (tmp_path / "classes.txt").write_text("wall\n\ndoor\n")  # counts if no other file names them
    (tmp_path / "labels/classes.txt").write_text("")
    assert [own.path.name for own in Yolo.find(tmp_path / "labels").annotations] == ["a.txt"]
    (tmp_path / "labels/classes.txt").unlink()
    reader = Yolo.find(tmp_path / "labels")
    assert dict(reader.labels) == {0: "wall", 1: "door"} and "classes.txt" in reader.notes[0]
    for name, text in (("compose", "a: ["), ("c", "names: [roof]"), ("data", "names: [house]")):
        (tmp_path / f"{name}.yaml").write_text(f"{text}\n")
        reader = Yolo.find(tmp_path / "labels")
        expected_names = {
            "compose": {0: "wall", 1: "door"},
            "c": {0: "roof"},
            "data": {0: "house"},
        }[name]
        assert dict(reader.labels) == expected_names
        notes = reader.describe([]).notes
        file = "classes.txt" if name == "compose" else f"{name}.yaml"
        assert [str(tmp_path / file) in note for note in notes] == [True]
