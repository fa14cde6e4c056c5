"""Tables of wrong input of `new_project`: the files and flags, and what the one line says."""

import json
import re
import shlex

import numpy as np
import pytest

from mmseg_ext import commands
from tests.datasets.trees import random_image, save
from tests.messages import check_message

SIZE = (40, 30)  # width, height
FLAGS = ("--coco", "--labelme", "--geojson", "--masks", "--yolo")
MASK = np.arange(30, dtype=np.uint8)[:, None].repeat(40, 1) // 10
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
CVAT = "<?xml?>\n<annotations>\n<version>1.1</version>\n</annotations>"
APERIO = '<Annotations Microns="0.2">\n<Annotation Id="1">\n<Regions>\n</Regions></Annotation>'
BOX_OF_VOC = "<annotation>\n<filename>a.png</filename><bndbox></bndbox></annotation>"
POLYGON_OF_LABELME_3 = "<annotation verified='0'><polygon><pt></pt></polygon></annotation>"
BOX = dict(id=1, image_id=1, category_id=1, bbox=[1, 1, 9, 9])
OUTLINE = BOX | dict(segmentation=[[1, 1, 9, 1, 9, 9]])
BOXES = dict(
    images=[dict(id=1, file_name="a.png"), dict(id=2, file_name="b.png")],
    annotations=[BOX, BOX | dict(id=2, image_id=2, segmentation=[])],
    categories=[dict(id=1, name="fire")],
)
POLYGON = "0 0.1 0.1 0.5 0.1 0.5 0.5"
SHAPE = dict(label="house", shape_type="mask", points=[[0, 0], [9, 9]])
NESTED = '{"images": ' + "[" * 100_000 + "]" * 100_000 + "}"

# JSON of other formats, and the word of the next step. Each is tried with all flags but its own.
JSON = [
    ({"_via_img_metadata": {"a": {"regions": [], "file_attributes": {}}}}, "VIA"),
    ({"a.jpg9": {"filename": "a.jpg", "regions": [], "file_attributes": {}}}, "VIA"),
    ({"description": "", "tags": [], "size": {}, "objects": []}, "Supervisely"),
    ([{"id": 1, "annotations": [{"lead_time": 1, "result": []}], "data": {}}], "Label Studio"),
    ({"info": {}, "categories": {}, "items": []}, "Datumaro"),
    ([{"version": 0, "tags": [], "shapes": [], "tracks": []}], "CVAT"),
    ({"type": "FeatureCollection", "features": []}, "--geojson"),
    ({"shapes": [], "imagePath": "a.jpg"}, "--labelme"),
    ({"images": [], "annotations": [], "categories": []}, "--coco"),
    (POINTER, "git lfs pull"),
    ([{"id": 1, "annotations": [{"result": []}], "data": {"image": "a"}}], "Label Studio"),
    ({"version": "2.0", "item": {"name": "a.png", "slots": []}, "annotations": []}, "V7 Darwin"),
    ({"project_name": "p", "label_classes": [], "images": [{"image_name": "a.png"}]}, "Hasty"),
    ({"name": "p", "dataset": {"task_type": "x", "samples": []}}, "Segments.ai"),
    ({"imgHeight": 30, "imgWidth": 40, "objects": []}, "Cityscapes"),
    ({"asset": {"name": "a.png"}, "regions": [], "version": "2.1.0"}, "VoTT"),
    ({"visitedAssetIds": [], "assets": {}}, "VoTT"),
    ({"data_row": {"external_id": "a.png"}, "projects": {}}, "Labelbox"),
    ([{"image": "a.png", "annotations": [{"coordinates": {"x": 1}}]}], "boxes"),
    (APERIO, "Aperio ImageScope"),
]
# Files besides two photos, flags, the file with which the line starts, and what it also says.
CASES = [
    *[
        (
            {"x/a.json": content},
            f"{flag} {'x/a.json' if flag == '--coco' else 'x'}",
            "x/a.json",
            [word],
        )
        for content, word in JSON
        for flag in FLAGS
        if flag != word
    ],
    *[
        ({f"x/a.{ending}": POLYGON if word == "--yolo" else CVAT}, flags, f"x/a.{ending}", [word])
        for ending, word in {
            "mp4": "video",
            "nii": "NIfTI",
            "nii.gz": "NIfTI",
            "dcm": "DICOM",
            "mat": "MATLAB",
            "npy": "NumPy",
            "txt": "--yolo",
            "xml": "CVAT",
            "zip": "unpack",
            "h5": "HDF5",
        }.items()
        for flags in ("--masks x", "--images x --masks images")
    ],
    *[
        ({"c.json": text}, "--coco c.json", "c.json", [])
        for text in ("{}", "text", "\0" * 999, NESTED)
    ],
    ({"x/a.txt": f"{POLYGON}\n0 0.5 0.5 0.2 0.2"}, "--yolo x", "x/a.txt", [2, 5, "box"]),
    ({"x/a.txt": f"{POLYGON}\n{POLYGON} 0.9"}, "--yolo x", "x/a.txt", [2, 8]),
    ({"x/a.txt": "house 0.1 0.1 0.2 0.2 0.1 0.3"}, "--yolo x", "x/a.txt", ["house"]),
    ({"x/a.txt": POINTER}, "--yolo x", "x/a.txt", ["git lfs pull"]),
    (
        *({"x/a.png": POINTER, "x/b.png": POINTER}, "--masks x"),
        *("none of 2 pairs can be read, the first: x/a.png", ["git lfs pull"]),
    ),
    (
        *({f"y/{i}.png": POINTER for i in "ab"}, "--images y --masks images"),
        *("none of 2 pairs can be read, the first: y/a.png", ["git lfs pull"]),
    ),
    *[
        ({"x/a.png": b"\x89PNG" + ends + b"\0" * 99}, "--masks x", "x/a.png", ["PNG", "again"])
        for ends in (b"\n\x1a\n", b"\r\r\n\x1a\r\n")  # as Git changes the ends of lines
    ],
    (
        *({"x/a.txt": POLYGON, "x/data.yaml": "kpt_shape: [3, 2]\nnames: [person]"}, "--yolo x"),
        *("x/data.yaml", ["poses", "polygons"]),
    ),
    (
        {"x/a.json": dict(shapes=[SHAPE | dict(mask="no image")])},
        "--labelme x",
        "x/a.json",
        ["house"],
    ),
    ({"x/a.json": dict(shapes=[SHAPE | dict(mask="bm8=")])}, "--labelme x", "x/a.json", ["house"]),
    # An error is shown, too, if the file looks like another format.
    (
        {"x/a.json": dict(shapes=[{}], file_attributes=1)},
        "--labelme x",
        "x/a.json",
        ["label", "VIA"],
    ),
    ({"x/c.json": dict(shapes=[], imagePath="")}, "--labelme x", "images", ["x/c.json", "rename"]),
    ({"x/c.geojson": dict(features=[])}, "--geojson x", "images", ["x/c.geojson", "rename"]),
    ({"x/c.txt": POLYGON}, "--yolo x", "images", ["x/c.txt", "rename"]),
    ({"x/c.png": MASK}, "--masks x", "images", ["x/c.png", "rename"]),
    ({}, "--masks x", "x", ["folder"]),
    ({}, "--masks images/a.png", "images/a.png", ["folder"]),
    # The project's own folder with files that no earlier run has written.
    ({"p/data/a.png": MASK}, "--masks p/data", "p/data/a.png", ["another project"]),
    # Texts in other encodings.
    ({"x/a.txt": POLYGON, "x/classes.txt": b"\xe4"}, "--yolo x", "x/classes.txt", ["UTF-8"]),
    (
        {"x/a.png": MASK, "x/b.png": MASK, "v.txt": b"\xe4"},
        "--masks x --split val=v.txt",
        *("v.txt", ["UTF-8"]),
    ),
    ({"x/a.png": MASK}, "--masks y=x y=x", "--masks y=x", ["NAME=DIR"]),
    ({"x/a.png": MASK}, "--masks x x", "--masks x", ["NAME=DIR", "quotes"]),
    ({"x/a.png": MASK}, "--masks y=z", "z", ["folder"]),
    ({"x/a.png": MASK}, "--masks 'y=x/*_y.png'", "x/*_y.png", ["y"]),
    ({"x/a.png": MASK}, "--masks y=x --objects", "--objects", ["--masks x"]),
    ({"x/a.png": MASK}, "--masks y=x", "x/a.png", [2, "--binary"]),
    (
        *({"x/a.png": MASK}, "--masks x --background-without-annotation"),
        *("--background-without-annotation", ["mask"]),
    ),
    ({}, "--coco images", "images", ["2 .png", ".json"]),
    ({"x/y/z.abc": "", "x/y/z.abd": "", "x/u.abd": ""}, "--coco x", "x", ["2 .abd", ".json"]),
    ({"x/y/z.abc": ""}, "--masks x", "x", ["1 .abc", ".png"]),
    # Folders of another format are one line with the number of files, whatever the flag.
    *[
        (files, f"{flag} x", "x/a", [len(files), *words])
        for files, *words in (
            ({"x/a.xml": APERIO, "x/b.xml": APERIO}, "Aperio ImageScope", "masks"),
            ({"x/a.xml": BOX_OF_VOC, "x/b.xml": BOX_OF_VOC}, "boxes"),
            ({"x/a.xml": POLYGON_OF_LABELME_3, "x/b.xml": ""}, "LabelMe 3", "datum"),
            ({"x/a_RoiSet.zip": "", "x/b_RoiSet.zip": ""}, "ImageJ", "PNG"),
        )
        for flag in FLAGS
    ],
    ({"images/x.mp4": "", "images/README.md": ""}, "--masks images", "images/x.mp4", ["video"]),
    # Boxes are a line about the file, and all photos that cannot be read are one line.
    ({"c.json": BOXES}, "--coco c.json", "c.json", [2, "boxes", "polygons"]),
    (
        {f"x/{i}.txt": "0 0.5 0.5 0.2 0.2" for i in "ab"},
        "--yolo x",
        "none of 2 pairs can be read, the first: x/a.txt",
        ["box", "polygons"],
    ),
    (
        {f"x/{i}.json": {"version": 1, "shapes": 3} for i in "ab"},
        "--labelme x",
        "none of 2 pairs can be read, the first: x/a.json",
        ["docs/own_dataset.md"],
    ),
    # Run lengths of Kaggle, and what is not there.
    *(
        ({"x/c.csv": "ImageId,EncodedPixels\na.png,1 3\n"}, f"{flag} {path}", "x/c.csv", ["PNG"])
        for flag, path in (("--coco", "x/c.csv"), ("--coco", "x"), ("--masks", "x"))
    ),
    ({}, "--coco x", "x", ["there is no such file"]),
    ({"x/c.tif": MASK}, "--masks x/c.tif", "x/c.tif", ["page"]),
    ({"x/c.xml": "<a></a>"}, "--masks x", "x", ["docs/own_dataset.md"]),
    # What an error of names advises has the flag of the user.
    ({"x/c.json": dict(shapes=[])}, "--labelme x", "images", ["--labelme 'DIR/*_label.json'"]),
    ({"x/c.geojson": "[]"}, "--geojson x", "images", ["--geojson 'DIR/*_label.geojson'"]),
    (
        {
            "c.json": BOXES
            | dict(annotations=[OUTLINE], images=[BOXES["images"][0] | dict(file_name="c.png")])
        },
        "--coco c.json",
        "images",
        ["c.png", "c.json"],
    ),
    (
        {f"images/{i}{end}.png": MASK for i in "ab" for end in ("-semantic", "_red-leaf", "_2")},
        "--masks images",
        "images",
        ["--masks 'images/*-semantic.png'"],
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_wrong_input_is_one_line(case, tmp_path, capsys, monkeypatch):
    files, flags, where, values = CASES[case]
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate("ab"):
        save(tmp_path / f"images/{name}.png", random_image(np.random.RandomState(i), SIZE))
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, np.ndarray):
            save(path, content)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    assert commands.run("new_project", ["p", "--images", "images", *shlex.split(flags)]) == 1
    error = capsys.readouterr().err
    check_message(error.removeprefix("mmseg_ext: "), *values, where=where)
    assert error.count("\n") == 1 and len(error) < 600 and "object at" not in error
    assert not re.search(r"[A-Z]\w+(Error|Exception)", error)  # the name of a Python error
    assert not (tmp_path / "p/config.py").exists()


def test_a_pattern_without_quotes_is_explained(capsys):
    with pytest.raises(SystemExit):
        commands.run("new_project", ["p", "--images", "a.png", "b.png", "--masks", "x"])
    check_message(capsys.readouterr().err.splitlines()[-1], "b.png", todo="quotes")
