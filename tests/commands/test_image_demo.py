"""The demo over images and folders, and mmsegmentation's own ways to predict."""

import csv
import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
import torch
from mmseg.apis import inference_model, init_model
from PIL import Image

from mmseg_ext import Predictor, get_model
from mmseg_ext.commands import run
from mmseg_ext.images.files import read_photo
from mmseg_ext.images.values import read_page
from mmseg_ext.inference import prediction
from mmseg_ext.inference.georeference import read_georeference
from tests.configs import CONFIGS
from tests.datasets.trees import random_image, save
from tests.engine.runs import ROOT
from tests.messages import lines_with
from tests.models import randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")
WEIGHTS = ROOT / "mmseg_ext/weights/ea_r18_fpn_nuclei_4k.pth"
META = {"classes": list("abcdef"), "palette": [[40 * i, 0, 9] for i in range(6)]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    torch.manual_seed(0)
    model = randomise(get_model(CONFIG))
    with torch.no_grad():
        model.decode_head.conv_seg.weight.mul_(100)  # scores that differ between pixels
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    torch.save({"state_dict": model.state_dict(), "meta": {"dataset_meta": META}}, path)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """Five images of three shapes, one of them truncated, in a tree."""
    root, random = tmp_path / "images", np.random.RandomState(0)
    sizes = {"a.png": (64, 64), "a.bmp": (80, 48), "b.png": (64, 64), "deep/c.png": (70, 50)}
    for name, size in sizes.items():
        save(root / name, random_image(random, size))
    (root / "z.png").write_bytes((root / "a.png").read_bytes()[:2000])
    os.mkfifo(root / "pipe.jpg")  # reading it would wait for ever
    (root / "folder.jpg").mkdir()
    for hidden in ("._a.png", "deep/._c.png", ".ipynb_checkpoints/a-checkpoint.png"):
        save(root / hidden, np.zeros((9, 9), np.uint8))
    return root


def read(path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_a_folder_is_segmented_and_broken_images_are_named(folder, checkpoint, capsys):
    """Subfolders only with --recursive; results in the folder are no input of a second run."""
    out = folder / "out"
    words = [str(folder), CONFIG, checkpoint, "--out", str(out)]
    assert run("image_demo", words) == 1
    assert not (out / "labels/deep").exists()
    words.append("--recursive")
    for _ in range(2):
        assert run("image_demo", words) == 1
        captured = capsys.readouterr()
        assert lines_with(captured.out, 4, out)
        assert lines_with(captured.err, f"{folder}/z.png:", 2000)
    images = {"a.png.png": "a.png", "a.png": "a.bmp"}
    images |= {name: name for name in ("b.png", "deep/c.png")}
    assert {str(p.relative_to(out / "labels")) for p in out.glob("labels/**/*.png")} == set(images)
    model = init_model(CONFIG, checkpoint, device="cpu")
    for result, image in images.items():
        expected = inference_model(model, str(folder / image)).pred_sem_seg.data[0].numpy()
        labels = read(out / "labels" / result)
        assert (labels == expected).all()
        overlay = read(out / "overlays" / result)[: labels.shape[0], : labels.shape[1]].astype(int)
        colors = np.array(META["palette"])[labels]
        mixed = (read(folder / image) + colors) / 2
        inside = np.abs(overlay - mixed).max(2) <= 1
        lines = (overlay == colors).all(2)
        assert (inside | lines).all() and inside.any() and lines.any()


def test_results_beside_the_images(folder, checkpoint, tmp_path, monkeypatch):
    """With `--out .` and with the folder of the images."""
    (tmp_path / "photos").mkdir()
    Image.open(folder / "a.png").save(tmp_path / "photos/a.png")
    monkeypatch.chdir(tmp_path)
    for image, out in (("photos", "."), ("photos/a.png", "photos")):
        assert run("image_demo", [image, CONFIG, checkpoint, "--out", out]) == 0
        assert Path(out, "labels/a.png").is_file()


def test_names_that_a_disk_lacks_stop_no_other_photo(tmp_path, capsys, checkpoint):
    """Too long with the ending of a result; two that differ only in case; one that is no UTF-8."""
    names = ["a" * 251 + ".bmp", "B.png", "b.bmp", "b.bmp.png", os.fsdecode(b"\xff.png"), "z.png"]
    for name in names:
        save(tmp_path / "photos" / name, np.zeros((9, 9, 3), np.uint8))
    words = [str(tmp_path / "photos"), CONFIG, checkpoint, "--out", str(tmp_path / "out")]
    assert run("image_demo", [*words, "--json", "--csv"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and names[0] in captured.err and "long" in captured.err
    expected = {"B.png", "b.bmp.png", "b.bmp.png.png", names[4], "z.png"}
    assert {path.name for path in (tmp_path / "out/labels").iterdir()} == expected | {
        names[0][:-4] + ".png"
    }
    assert (tmp_path / "out/classes.csv").read_bytes().count(b"\n") == 1 + len(expected)


def test_a_disk_that_cannot_be_written_stops_the_run(folder, checkpoint, tmp_path, capsys):
    (tmp_path / "out").write_bytes(b"")
    words = [str(folder), CONFIG, checkpoint, "--out", str(tmp_path / "out")]
    assert run("image_demo", words) == 1
    assert lines_with(capsys.readouterr().err, tmp_path / "out", "cannot be written")


def test_an_interrupt_keeps_the_tables_of_photos_that_are_done(
    folder, checkpoint, tmp_path, monkeypatch
):
    photos = []

    def interrupted(path, *rest):
        photos.append(path)
        if len(photos) == 3:
            raise KeyboardInterrupt
        return read_photo(path, *rest)

    monkeypatch.setattr(prediction, "read_photo", interrupted)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        prediction.predict(folder, CONFIG, checkpoint, out, formats=["csv", "coco"])
    rows = list(csv.DictReader((out / "classes.csv").open()))
    names = [path.name for path in photos[:2]]
    assert [row["file_name"] for row in rows] == names
    content = json.loads((out / "coco.json").read_text())
    assert [image["file_name"] for image in content["images"]] == names
    assert {row["file_name"] for row in csv.DictReader((out / "objects.csv").open())} == {*names}


def test_large_and_tiny_images(folder, checkpoint, tmp_path, capsys):
    save(folder / "one.png", np.zeros((1, 1, 3), np.uint8))
    words = [str(folder), CONFIG, checkpoint, "--out", str(tmp_path / "out"), "--max-pixels"]
    assert run("image_demo", [*words, str(64 * 64 - 1)]) == 1
    assert len(lines_with(capsys.readouterr().err, "--max-pixels")) == 3
    huge = b"P5 20000 16106 255\n"  # the header is enough
    (tmp_path / "huge.ppm").write_bytes(huge)
    assert run("image_demo", [str(tmp_path / "huge.ppm"), *words[1:-1]]) == 1
    error = capsys.readouterr().err
    assert lines_with(error, "huge.ppm:", "20000x16106", "5.1 GiB", "--max-pixels 322120000")
    assert run("image_demo", [*words, str(64 * 64)]) == 1  # because of the truncated one
    names = {"one.png", "a.png.png", "a.png", "b.png"}
    assert {p.name for p in (tmp_path / "out/labels").iterdir()} == names
    assert read(tmp_path / "out/labels/one.png").shape == (1, 1)
    plain = read(tmp_path / "out/overlays/b.png")
    assert run("image_demo", [str(folder / "b.png"), *words[1:], "5000", "--with-labels"]) == 0
    named = read(tmp_path / "out/overlays/b.png")
    assert named.shape == plain.shape and (named != plain).any()


def test_objects_are_measured_and_exported(folder, checkpoint, tmp_path, capsys):
    out = tmp_path / "out"
    words = [str(folder), CONFIG, checkpoint, "--recursive", "--out", str(out)]
    words += ["--json", "--coco", "--csv", "--min-area", "3", "--tile", "48"]
    assert run("image_demo", words) == 1  # because of the truncated one
    predictor = Predictor(get_model(CONFIG, weights=checkpoint), tile=48)
    coco = json.loads((out / "coco.json").read_text())
    names = ["a.bmp", "a.png", "b.png", "deep/c.png"]
    assert [image["file_name"] for image in coco["images"]] == names
    assert [category["name"] for category in coco["categories"]] == META["classes"]
    assert len({annotation["id"] for annotation in coco["annotations"]}) == len(coco["annotations"])
    with (out / "classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    for image, row in zip(coco["images"], rows, strict=True):
        result = predictor(folder / image["file_name"])
        height, width = result.labels.shape
        assert (image["height"], image["width"]) == (height, width) and row["height"] == str(height)
        expected = [found for name in META["classes"] for found in result.objects(name, 3)]
        file = "a.png" if row["file_name"] == "a.png" else row["file_name"][:-4]
        features = json.loads((out / "objects" / f"{file}.geojson").read_text())["features"]
        own = [a for a in coco["annotations"] if a["image_id"] == image["id"]]
        assert len(expected) >= 2
        for found, feature, annotation in zip(expected, features, own, strict=True):
            assert feature["properties"]["area"] == annotation["area"] == found.area
            assert META["classes"][annotation["category_id"] - 1] == found.name
            color = META["palette"][META["classes"].index(found.name)]
            assert feature["properties"]["classification"] == dict(name=found.name, color=color)
        for i, name in enumerate(META["classes"]):
            assert float(row[f"{name} share"]) == pytest.approx(
                (result.labels == i).mean(), abs=1e-6
            )
            assert row[f"{name} objects"] == str(len(result.objects(name, 3)))
    words = [str(folder / "b.png"), *words[1:6], "--csv", "--classes"]
    assert run("image_demo", [*words, "c", "g"]) == 1
    assert "--classes g: " in capsys.readouterr().err
    assert run("image_demo", [*words, "c"]) == 0
    header = (out / "classes.csv").read_text().splitlines()[0]
    assert header == "file_name,width,height,c share,c objects"


def test_counts_leave_out_specks_and_the_background(tmp_path, capsys):
    """By default objects of less than 16 pixels, as the network sees them.

    The name of a config with weights needs no checkpoint.
    """
    config, half = CONFIGS / f"{WEIGHTS.stem}.py", tmp_path / "half.py"
    image = ROOT / "demo/nuclei.png"
    side = Image.open(image).size[0] // 2
    half.write_text(
        f"_base_ = {str(config)!r}\npipeline = _base_.test_dataloader['dataset']['pipeline']\n"
        "test_dataloader = dict(dataset=dict(pipeline=[pipeline[0], dict(type='Resize',\n"
        f"    scale=({side}, {side}), keep_ratio=True), *pipeline[1:]]))\n"
    )
    for words, least in (([WEIGHTS.stem], 16), ([str(half), str(WEIGHTS)], 64)):
        flags = ["--csv", "--json", "--out", str(tmp_path / "out")]
        assert run("image_demo", [str(image), *words, *flags]) == 0
        with (tmp_path / "out/classes.csv").open() as file:
            (row,) = csv.DictReader(file)
        result = Predictor(*words)(image)
        areas = [found.area for found in result.objects("nucleus")]
        small = sum(area < least for area in areas)
        for name in ("background", "border"):
            assert f"{name} share" in row and f"{name} objects" not in row
        assert row["nucleus objects"] == str(len(areas) - small)
        assert small and lines_with(capsys.readouterr().out, small, "--min-area 0")
        features = json.loads((tmp_path / "out/objects/nuclei.geojson").read_text())["features"]
        assert len(features) == len(areas) - small


def test_only_chosen_classes_are_drawn_and_the_config_tells_the_least_area(tmp_path, capsys):
    """By the objects of the training labels; --min-area is for all classes, also in micrometers."""
    config, image = tmp_path / "own.py", ROOT / "demo/nuclei.png"
    config.write_text(
        f"_base_ = {str(CONFIGS / f'{WEIGHTS.stem}.py')!r}\nmin_area = dict(nucleus=90)\n"
    )
    words = [str(image), str(config), str(WEIGHTS), "--out", str(tmp_path), "--csv"]
    words += ["--classes", "Nucleus", "border", "--opacity", "1"]  # names in any case
    areas = {
        name: [found.area for found in Predictor(WEIGHTS.stem)(image).objects(name)]
        for name in ("nucleus", "border")
    }
    for more, least in (
        ((), (90, 16)),
        (("--min-area", "40"), (40, 40)),
        (("--min-area-um2", "10", "--pixel-size", "0.5"), (40, 40)),
    ):
        assert run("image_demo", [*words, *more]) == 0
        with (tmp_path / "classes.csv").open() as file:
            (row,) = csv.DictReader(file)
        for name, smallest in zip(areas, least, strict=True):
            counted = sum(area >= smallest for area in areas[name])
            assert row[f"{name} objects"] == str(counted)
    labels, overlay = read(tmp_path / "labels/nuclei.png"), read(tmp_path / "overlays/nuclei.png")
    overlay = overlay[: labels.shape[0], : labels.shape[1]]
    result = Predictor(WEIGHTS.stem)(image)
    for name, is_drawn in (("nucleus", True), ("border", True), ("background", False)):
        here = labels == result.classes.index(name)
        color = result.palette[result.classes.index(name)]
        expected = np.broadcast_to(color, result.image.shape) if is_drawn else result.image
        assert (overlay[here] == expected[here]).all()
    capsys.readouterr()
    assert run("image_demo", [*words, "--min-area-um2", "10"]) == 1
    assert lines_with(capsys.readouterr().err, "--min-area-um2", "--pixel-size")


def test_the_lowest_value_of_masks_without_names_is_no_object(tmp_path):
    weights = tmp_path / "unnamed.pth"
    content = torch.load(WEIGHTS, weights_only=True)
    content["meta"]["dataset_meta"]["classes"] = ["class_0", "class_1", "class_2"]
    torch.save(content, weights)
    words = [WEIGHTS.stem, str(weights), "--csv"]
    assert run("image_demo", [str(ROOT / "demo/nuclei.png"), *words, "--out", str(tmp_path)]) == 0
    header = (tmp_path / "classes.csv").read_text().splitlines()[0].split(",")
    assert [name for name in header if "objects" in name] == ["class_1 objects", "class_2 objects"]


def test_more_than_256_classes(tmp_path, folder):
    """Label maps are then PNGs of 16 bits. The classes are those of a wrapped dataset."""
    config, weights = str(tmp_path / "many.py"), tmp_path / "many.pth"
    Path(config).write_text(
        f"_base_ = {CONFIG!r}\n"
        "model = dict(decode_head=dict(num_classes=300))\n"
        "one = dict(type='CheckedDataset', data_root='nowhere', pipeline=_base_.test_pipeline,\n"
        "    metainfo=dict(classes=[str(i) for i in range(300)]))\n"
        "test_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset',\n"
        "    datasets=[one, one]))\n"
    )
    model = get_model(config)
    assert list(model.dataset_meta["classes"]) == [str(i) for i in range(300)]
    with torch.no_grad():
        model.decode_head.conv_seg.bias[299] = 1e4
    torch.save({"state_dict": model.state_dict()}, weights)
    words = [str(folder / "a.png"), config, str(weights), "--opacity", "1"]
    assert run("image_demo", [*words, "--out", str(tmp_path / "out")]) == 0
    labels = read(tmp_path / "out/labels/a.png")
    assert labels.dtype == np.uint16 and (labels == 299).all()
    overlay = read(tmp_path / "out/overlays/a.png")
    assert (overlay[:64, :64] == model.dataset_meta["palette"][299]).all()


def write_geotiff(path: Path, pixels: np.ndarray) -> None:
    """Write a photo in UTM zone 32N, whose pixels are half a meter, with its corner at 100, 900."""
    tags = [
        (33550, 12, 3, [0.5, 0.5, 0], True),
        (33922, 12, 6, [0, 0, 0, 100, 900, 0], True),
        (34735, 3, 12, [1, 1, 0, 2, 1024, 0, 1, 1, 3072, 0, 1, 32632], True),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, pixels, photometric="rgb", metadata=None, extratags=tags)


@pytest.mark.parametrize("tile", [(), ("--tile", "96")])
def test_a_photo_on_a_map_has_results_on_the_map(tile, checkpoint, tmp_path, capsys):
    photo, out = tmp_path / "field.tif", tmp_path / "out"
    pixels = random_image(np.random.RandomState(0), (160, 128))
    write_geotiff(photo, pixels)
    words = [str(photo), CONFIG, checkpoint, *tile, "--out", str(out)]
    assert run("image_demo", [*words, "--json", "--confidence", "--min-area", "9"]) == 0
    assert capsys.readouterr().err == ""
    predictor = Predictor(CONFIG, checkpoint, tile=96 if tile else None, confidence=True)
    result = predictor(pixels)
    written = tifffile.imread(out / "labels/field.tif")
    assert (written == result.labels).all() and len(np.unique(written)) > 1
    confidence = tifffile.imread(out / "confidence/field.tif") / 255
    assert np.abs(confidence - result.confidence.astype(float)).max() < 0.003
    for kind in ("labels", "confidence"):
        place = read_georeference(out / kind / "field.tif")
        assert place.epsg == 32632 and place.on_map(np.array([[10, 4]])).tolist() == [[105, 898]]
        assert not (out / kind / "field.png").exists()
    content = json.loads((out / "objects/field.geojson").read_text())
    assert content["crs"]["properties"]["name"].endswith("EPSG::32632")
    expected = [found for name in result.classes for found in result.objects(name, 9)]
    assert len(expected) == len(content["features"]) > 2
    for found, feature in zip(expected, content["features"], strict=True):
        (x, y), ring = feature["geometry"]["coordinates"][0][0], found.polygon[0]
        assert [x, y] == [100 + ring[0][0] / 2, 900 - ring[0][1] / 2]
    no_code = tmp_path / "no_code.tif"
    tags = [(33550, 12, 3, [1, 1, 0], True), (33922, 12, 6, [0, 0, 0, 1, 9, 0], True)]
    tifffile.imwrite(no_code, pixels, photometric="rgb", metadata=None, extratags=tags)
    assert run("image_demo", [str(no_code), *words[1:], "--json"]) == 0
    assert lines_with(capsys.readouterr().err, "no_code.tif", "EPSG")


def test_each_page_of_a_stack_has_results(checkpoint, tmp_path, capsys):
    """Pages of several sizes; a file of one image keeps its name, and a bad page is named."""
    folder, out = tmp_path / "stacks", tmp_path / "out"
    random = np.random.RandomState(0)
    pages = [random_image(random, size) for size in ((48, 64), (64, 48), (48, 64))]
    folder.mkdir()
    with tifffile.TiffWriter(folder / "z.tif") as file:
        for page in pages:
            file.write(page, photometric="rgb", metadata=None)
    tifffile.imwrite(folder / "one.tif", pages[0], photometric="rgb")
    save(folder / "photo.png", pages[1])
    words = [str(folder), CONFIG, checkpoint, "--out", str(out), "--csv", "--coco", "--confidence"]
    assert run("image_demo", words) == 1
    assert lines_with(capsys.readouterr().err, f"{folder}/z.tif:", "--pages")
    assert run("image_demo", [*words, "--pages"]) == 0
    predictor = Predictor(CONFIG, checkpoint, confidence=True)
    names = ["one", "photo", "z_page1", "z_page2", "z_page3"]
    assert sorted(path.stem for path in (out / "labels").iterdir()) == names
    for i, pixels in enumerate(pages):
        result = predictor(pixels)
        for given in (read_page(folder / "z.tif", i), [read_page(folder / "z.tif", i)]):
            again = predictor(given)
            again = again[0] if isinstance(again, list) else again
            assert (again.labels == result.labels).all() and (again.image == pixels).all()
        assert (read(out / f"labels/z_page{i + 1}.png") == result.labels).all()
        confidence = read(out / f"confidence/z_page{i + 1}.png") / 255
        assert np.abs(confidence - result.confidence.astype(float)).max() < 0.003
    coco = json.loads((out / "coco.json").read_text())
    files = [image["file_name"] for image in coco["images"]]
    assert files == ["one.tif", "photo.png", "z_page1.tif", "z_page2.tif", "z_page3.tif"]
    with tifffile.TiffWriter(folder / "z.tif") as file:
        file.write(pages[0], photometric="rgb", metadata=None)
        file.write(pages[1][..., :2], photometric="minisblack", metadata=None, planarconfig=1)
    assert run("image_demo", [*words, "--pages"]) == 1
    assert lines_with(capsys.readouterr().err, f"{folder}/z.tif:", "page 2", "2 bands")


def test_the_table_of_objects_has_measures(tmp_path, capsys):
    """In pixels, in micrometers, and of the file's own values; borders are no objects."""
    gray = np.asarray(Image.open(ROOT / "demo/nuclei.png").convert("L")).astype(np.uint16)
    photo, out = tmp_path / "nuclei.tif", tmp_path / "out"
    tifffile.imwrite(photo, gray * 16, photometric="minisblack")
    words = [str(photo), WEIGHTS.stem, "--value-range", "0", "4080", "--out", str(out), "--csv"]
    tables = []
    for more in ((), ("--pixel-size", "0.5"), ("--classes", "border")):
        assert run("image_demo", [*words, *more]) == 0
        with (out / "objects.csv").open() as file:
            tables.append(list(csv.DictReader(file)))
    plain, sized, borders = tables
    result = Predictor(WEIGHTS.stem, value_range=(0, 4080))(photo)
    expected = result.objects("nucleus", 16)
    assert {row["class"] for row in plain} == {"nucleus"} and len(plain) == len(expected)
    assert len(borders) == len(result.objects("border", 16)) > 0
    for found, row, more in zip(expected, plain, sized, strict=True):
        assert row["file_name"] == "nuclei.tif" and float(row["area"]) == found.area
        assert [float(row[f"box_{key}"]) for key in ("x", "y", "width", "height")] == [*found.box]
        center = (float(row["centroid_x"]), float(row["centroid_y"]))
        assert center == pytest.approx(found.centroid)
        x, y, width, height = found.box
        own = gray[y : y + height, x : x + width][found.mask] * 16.0
        assert float(row["mean_1"]) == pytest.approx(own.mean()) and "mean_2" not in row
        assert float(row["circularity"]) == pytest.approx(found.circularity)
        assert more.items() >= row.items()
        assert float(more["area_um2"]) == pytest.approx(found.area / 4)
        diameter = found.equivalent_diameter / 2
        assert float(more["equivalent_diameter_um"]) == pytest.approx(diameter)


def write_video(path: Path, code: str, frames: list[np.ndarray]) -> None:
    size = (frames[0].shape[1], frames[0].shape[0])
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), 10, size)
    for frame in frames:
        writer.write(frame)
    writer.release()


def video_frames(path: Path) -> list[np.ndarray]:
    file, frames = cv2.VideoCapture(str(path)), []
    while (read := file.read())[0]:
        frames.append(read[1])
    return frames


def test_a_video_has_a_video_of_overlays(checkpoint, tmp_path, capsys):
    random, out = np.random.RandomState(0), tmp_path / "out"
    drawn = [cv2.resize(random_image(random, (6, 8)), (64, 48)) for _ in range(5)]
    video = tmp_path / "clip.avi"
    write_video(video, "MJPG", drawn)
    words = [str(video), CONFIG, checkpoint, "--out", str(out)]
    assert run("image_demo", words) == 0
    assert not (out / "labels").exists()
    assert run("image_demo", [*words, "--frame-labels", "--csv", "--with-labels"]) == 0
    predictor, frames = Predictor(CONFIG, checkpoint), video_frames(video)
    overlays = video_frames(out / "overlays/clip.mp4")
    assert len(overlays) == len(frames) == 5 and overlays[0].shape == (48, 64, 3)
    for number, (frame, overlay) in enumerate(zip(frames, overlays, strict=True), 1):
        result = predictor(frame[..., ::-1])
        assert (read(out / f"labels/clip/{number:06}.png") == result.labels).all()
        expected = np.asarray(result.overlay())[..., ::-1].astype(int)
        assert np.abs(overlay - expected).mean() < 40  # MPEG-4 blurs noise and lines, and names
    with (out / "classes.csv").open() as file:
        assert [row["file_name"] for row in csv.DictReader(file)][-1] == "clip/000005.png"

    content = video.read_bytes()
    video.write_bytes(content[: len(content) * 3 // 5])
    capsys.readouterr()
    assert run("image_demo", words) == 1
    error = capsys.readouterr().err
    assert lines_with(error, f"{video}:", 5)
    assert 1 <= len(video_frames(out / "overlays/clip.mp4")) <= 4
    video.write_bytes(b"text")
    assert run("image_demo", words) == 1
    assert lines_with(capsys.readouterr().err, f"{video}:", "ffmpeg")


def test_bad_arguments_are_one_line(folder, tmp_path, capsys):
    image = str(folder / "a.png")
    for words, message in (
        (["nowhere", CONFIG, "none"], "nowhere: there is no such file"),
        ([image, CONFIG], f"{CONFIG}: has no weights here; name a checkpoint"),
        ([image, CONFIG, "none", "--device", "cuda:99"], "device 'cuda:99' cannot be used"),
        ([image, CONFIG, "none", "--opacity", "1.5"], "--opacity=1.5: choose"),
        ([image, CONFIG, "none", "--opacity", "-1"], "--opacity=-1.0: choose"),
        ([image, CONFIG, "none", "--pixel-size", "0"], "--pixel-size=0: choose"),
        ([image, CONFIG, "none", "--pixel-size", "nan"], "--pixel-size=nan: choose"),
        ([image, CONFIG, "none", "--min-area", "nan"], "--min-area=nan: choose"),
    ):
        assert run("image_demo", [*words, "--out", str(tmp_path / "out")]) == 1
        line = capsys.readouterr().err
        assert message in line and line.count("\n") == 1
