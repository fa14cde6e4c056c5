"""The converters on tiny archives: what they write, verify and refuse, and how they go on."""

import importlib
import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmseg.registry import DATASETS
from PIL import Image
from scipy.io import savemat

from mmseg_ext.commands import ade20k as ade20k_command
from mmseg_ext.commands import cityscapes as cityscapes_command
from mmseg_ext.datasets.checked_dataset import MissingDataError
from mmseg_ext.datasets.converters import ade20k, camvid, cityscapes, voc_aug
from mmseg_ext.datasets.converters.conversion import require_counts, write_whole
from mmseg_ext.errors import ConversionError
from tests.configs import CONFIGS
from tests.datasets.trees import (
    BASES,
    SIZE,
    datasets,
    make_tree,
    random_label,
    save_image,
    save_mask,
    set_data_root,
    voc_palette,
)
from tests.engine.runs import run_script

SHAPE = SIZE[::-1]


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# --- VOC ------------------------------------------------------------------------------------------

TRAIN, VAL, SBD_TRAIN, SBD_VAL = ("a", "b", "c"), ("d", "e"), ("b", "d", "f", "g"), ("h",)


@pytest.fixture
def voc(tmp_path):
    """VOCdevkit and benchmark_RELEASE of eight images: SBD has one of train and one of val."""
    rng = np.random.RandomState(0)
    root = tmp_path / "VOCdevkit"
    for name in "abcdefgh":
        save_image(root / f"VOC2012/JPEGImages/{name}.jpg", rng)
    for name in (*TRAIN, *VAL):
        label = random_label(rng, [*range(21), 255])
        save_mask(root / f"VOC2012/SegmentationClass/{name}.png", label, voc_palette())
    lists = root / "VOC2012/ImageSets/Segmentation"
    lists.mkdir(parents=True)
    for split, names in (("train", TRAIN), ("val", VAL), ("trainval", TRAIN + VAL)):
        (lists / f"{split}.txt").write_text("\n".join(names) + "\n")
    sbd = tmp_path / "benchmark_RELEASE"
    (sbd / "dataset/cls").mkdir(parents=True)
    for name in (*SBD_TRAIN, *SBD_VAL):
        label = random_label(rng, range(21))
        content = {"GTcls": {"Segmentation": label, "Boundaries": 0, "CategoriesPresent": [1]}}
        savemat(sbd / f"dataset/cls/{name}.mat", content)
    (sbd / "dataset/train.txt").write_text("\n".join(SBD_TRAIN))
    (sbd / "dataset/val.txt").write_text("\n".join(SBD_VAL) + "\n")
    return root, sbd


def sbd_label(sbd: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat

    return loadmat(sbd / f"dataset/cls/{name}.mat")["GTcls"]["Segmentation"][0, 0]


def test_voc_aug(voc):
    """trainaug is train and SBD less val; train keeps VOC's own label maps."""
    root, sbd = voc
    counts = voc_aug.convert_voc_aug(root, sbd, allow_partial=True)
    assert counts == {"train": 3, "val": 2, "trainval": 5, "trainaug": 6, "aug": 3}
    lists = root / "VOC2012/ImageSets/Segmentation"
    assert (lists / "trainaug.txt").read_text().split() == list("abcfgh")
    assert (lists / "aug.txt").read_text().split() == list("fgh")
    folder = root / "VOC2012/SegmentationClassAug"
    assert sorted(path.stem for path in folder.iterdir()) == list("abcfgh")
    for name in TRAIN:
        own = root / f"VOC2012/SegmentationClass/{name}.png"
        assert (folder / f"{name}.png").read_bytes() == own.read_bytes()
    for name in "fgh":
        with Image.open(folder / f"{name}.png") as image:
            assert image.mode == "P"
            assert np.array_equal(np.array(image), sbd_label(sbd, name))
            assert image.getpalette()[: 21 * 3] == voc_palette()[:21].ravel().tolist()


def test_voc_aug_goes_on_and_repeats_nothing(voc):
    root, sbd = voc
    voc_aug.convert_voc_aug(root, sbd, allow_partial=True)
    before = times(root)
    voc_aug.convert_voc_aug(root, sbd, allow_partial=True)
    assert times(root) == before
    lost = root / "VOC2012/SegmentationClassAug/g.png"
    content = lost.read_bytes()
    lost.unlink()
    (lost.parent / ".g.png.part.png").write_bytes(content[:10])  # as a killed run leaves it
    voc_aug.convert_voc_aug(root, sbd, allow_partial=True)
    assert lost.read_bytes() == content
    assert times(root).keys() == before.keys()


def test_voc_aug_is_read_by_the_config(voc):
    root, sbd = voc
    voc_aug.convert_voc_aug(root, sbd, allow_partial=True)
    cfg = Config.fromfile(CONFIGS / "_base_/datasets/voc_published.py")
    set_data_root(cfg, root / "VOC2012")
    assert len(DATASETS.build(cfg.train_dataloader.dataset)) == 6


def test_voc_aug_wants_the_published_numbers(voc):
    root, sbd = voc
    with pytest.raises(ConversionError, match=r"train: 3 of 1464.*trainaug: 6 of 10582.*partial"):
        voc_aug.convert_voc_aug(root, sbd)
    assert not (root / "VOC2012/SegmentationClassAug").exists()


def test_voc_aug_lists_come_after_verification(voc):
    """A broken image: no list that would let training start."""
    root, sbd = voc
    (root / "VOC2012/JPEGImages/h.jpg").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"unreadable-image: .*h\.jpg: is empty"):
        voc_aug.convert_voc_aug(root, sbd, allow_partial=True)
    assert not (root / "VOC2012/ImageSets/Segmentation/trainaug.txt").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root, sbd: shutil.rmtree(sbd / "dataset/cls"), "no folder dataset/cls"),
        (
            lambda root, sbd: (root / "VOC2012/ImageSets/Segmentation/train.txt").unlink(),
            "train.txt is not there",
        ),
        (lambda root, sbd: (sbd / "dataset/cls/f.mat").write_bytes(b"mat"), "f.mat: no class map"),
        (
            lambda root, sbd: savemat(
                sbd / "dataset/cls/f.mat", {"GTcls": {"Segmentation": np.full((2, 2), 21)}}
            ),
            r"f.mat: values that are no class: \[21\]",
        ),
        (
            lambda root, sbd: savemat(
                sbd / "dataset/cls/f.mat", {"GTcls": {"Segmentation": np.zeros((2, 3))}}
            ),
            "size-mismatch: .*f.png: is 3x2, its image .*f.jpg 24x18",
        ),
    ],
)
def test_voc_aug_names_what_is_wrong(voc, damage, message):
    root, sbd = voc
    damage(root, sbd)
    with pytest.raises(ConversionError, match=message):
        voc_aug.convert_voc_aug(root, sbd, allow_partial=True)


def test_missing_scipy_is_a_message(voc, monkeypatch):
    root, sbd = voc
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ConversionError, match="pip install scipy"):
        voc_aug.convert_voc_aug(root, sbd, allow_partial=True)


# --- Cityscapes -----------------------------------------------------------------------------------

TRAIN_IDS = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11}
TRAIN_IDS |= {25: 12, 26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}


@pytest.fixture
def city(tmp_path):
    """An unpacked archive with its maps of ids; those of test hold no class."""
    rng = np.random.RandomState(0)
    root = tmp_path / "cityscapes"
    for split, ids in (("train", range(34)), ("val", range(34)), ("test", range(4))):
        for i in range(2):
            stem = f"{split}/town/town_{i:06d}_000019"
            save_image(root / f"leftImg8bit/{stem}_leftImg8bit.png", rng)
            save_mask(root / f"gtFine/{stem}_gtFine_labelIds.png", random_label(rng, list(ids)))
    return root


def test_cityscapes_from_ids(city):
    counts = cityscapes.convert_cityscapes(city, allow_partial=True)
    assert counts == {"train": 2, "val": 2, "test": 2}
    for path in city.rglob("*_labelIds.png"):
        ids = np.array(Image.open(path))
        expected = np.vectorize(lambda value: TRAIN_IDS.get(value, 255))(ids)
        made = np.array(Image.open(str(path).replace("labelIds", "labelTrainIds")))
        assert np.array_equal(made, expected)
    cfg = Config.fromfile(CONFIGS / "_base_/datasets/cityscapes_769x769.py")
    set_data_root(cfg, city)
    assert len(DATASETS.build(cfg.train_dataloader.dataset)) == 2


def test_cityscapes_goes_on_and_repeats_nothing(city):
    cityscapes.convert_cityscapes(city, allow_partial=True)
    before = times(city)
    lost = next(path for path in before if path.name.endswith("labelTrainIds.png"))
    content = lost.read_bytes()
    lost.unlink()
    cityscapes.convert_cityscapes(city, allow_partial=True)
    assert lost.read_bytes() == content
    after = times(city)
    del before[lost], after[lost]
    assert after == before


def test_cityscapes_polygons_and_ids_agree(tmp_path):
    """cityscapesscripts draws from polygons what the table makes of its own map of ids."""
    module = pytest.importorskip("cityscapesscripts.preparation.json2labelImg")
    folder = tmp_path / "gtFine/train/town"
    folder.mkdir(parents=True)
    polygons = folder / "town_000000_000019_gtFine_polygons.json"
    labels = ["sky", "road", "car", "license plate", "cargroup", "ego vehicle", "rail track"]
    rng = np.random.RandomState(3)
    objects = [
        {"label": label, "polygon": rng.randint(0, 40, (5, 2)).tolist()} for label in labels * 3
    ]
    content = {"imgHeight": 40, "imgWidth": 40, "objects": objects}
    polygons.write_text(json.dumps(content))
    ids = folder / polygons.name.replace("polygons.json", "labelIds.png")
    module.json2labelImg(str(polygons), str(ids), "ids")
    target = folder / polygons.name.replace("polygons.json", "labelTrainIds.png")
    cityscapes.make_label_map(target, module.json2labelImg)
    drawn = np.array(Image.open(target))
    assert len(np.unique(drawn)) >= 4
    assert np.array_equal(drawn, cityscapes.train_ids(ids))
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (polygons, ids, target)
    )
    content["objects"][0]["label"] = "zeppelin"
    polygons.write_text(json.dumps(content))
    target.unlink()
    with pytest.raises(ConversionError, match="cannot draw it"):
        cityscapes.make_label_map(target, module.json2labelImg)
    assert not target.exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: shutil.rmtree(root / "gtFine"), "needs the folders leftImg8bit and gtFine"),
        (
            lambda root: (
                root / "gtFine/train/town/town_000000_000019_gtFine_labelIds.png"
            ).unlink(),
            "labelIds.png: there is no such file$",
        ),
        (
            lambda root: save_mask(
                root / "gtFine/train/town/town_000000_000019_gtFine_labelIds.png",
                np.full(SHAPE, 34, np.uint8),
            ),
            "ids up to 34, expected 0 to 33",
        ),
        (
            lambda root: save_mask(
                root / "gtFine/val/town/town_000000_000019_gtFine_labelIds.png",
                np.full(SHAPE, 3, np.uint8),
            ),
            "val: all-ignored: .*every pixel is ignored",
        ),
        (
            lambda root: (
                root / "leftImg8bit/test/town/town_000000_000019_leftImg8bit.png"
            ).write_bytes(b"x"),
            "test: unreadable-image",
        ),
    ],
)
def test_cityscapes_names_what_is_wrong(city, damage, message):
    damage(city)
    with pytest.raises(ConversionError, match=message):
        cityscapes.convert_cityscapes(city, allow_partial=True)


def test_cityscapes_wants_the_published_numbers(city):
    with pytest.raises(ConversionError, match="train: 2 of 2975, val: 2 of 500, test: 2 of 1525"):
        cityscapes.convert_cityscapes(city)


# --- ADE20K ---------------------------------------------------------------------------------------


@pytest.fixture
def ade(tmp_path):
    """The folder of the archive, and the archive."""
    tree = make_tree("ade20k", tmp_path)
    folder = tree.root.rename(tmp_path / "ADEChallengeData2016")
    (folder / "objectInfo150.txt").write_text("Idx\n")
    archive = tmp_path / "ADEChallengeData2016.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in sorted(folder.rglob("*")):
            opened.write(path, path.relative_to(tmp_path))
    return folder, archive


def test_ade20k_archive(ade, tmp_path):
    folder, archive = ade
    out = tmp_path / "data/ade/ADEChallengeData2016"
    assert ade20k.convert_ade20k(archive, out, allow_partial=True) == {
        "training": 3,
        "validation": 3,
    }
    files = {path.relative_to(folder): path.read_bytes() for path in times(folder)}
    assert {path.relative_to(out): path.read_bytes() for path in times(out)} == files
    before = times(out)
    ade20k.convert_ade20k(archive, out, allow_partial=True)
    assert times(out) == before
    lost = out / "annotations/training/ADE_train_00000001.png"
    lost.unlink()
    ade20k.convert_ade20k(archive, out, allow_partial=True)
    assert lost.read_bytes() == files[lost.relative_to(out)]


def test_ade20k_folder_is_linked_to(ade, tmp_path):
    folder, _ = ade
    out = tmp_path / "data/ade/ADEChallengeData2016"
    for source in (folder, folder.parent, folder):
        ade20k.convert_ade20k(source, out, allow_partial=True)
        assert out.is_symlink() and out.resolve() == folder.resolve()
    assert ade20k.convert_ade20k(folder, folder, allow_partial=True)["training"] == 3
    out.unlink()
    out.mkdir()
    with pytest.raises(ConversionError, match="is there already"):
        ade20k.convert_ade20k(folder, out, allow_partial=True)


def test_ade20k_wants_the_published_numbers(ade, tmp_path):
    with pytest.raises(ConversionError, match="training: 3 of 20210, validation: 3 of 2000"):
        ade20k.convert_ade20k(ade[0], tmp_path / "out")


@pytest.mark.parametrize(
    "files",
    [
        ["ADE20K_2021_17_01/index_ade20k.pkl"],
        ["ADE20K_2021_17_01/images/ADE/training/urban/street/ADE_train_00016869_seg.png"],
        ["ADE20K_2016_07_26/index_ade20k.mat"],
        ["renamed/images/training/a/abbey/ADE_train_00000971_seg.png"],
        ["renamed/index_ade20k.mat", "renamed/images/training/a/x.jpg"],
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_full_ade20k_is_refused(files, zipped, tmp_path):
    source = tmp_path / files[0].split("/")[0]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    if zipped:
        source = tmp_path / "archive.zip"
        with zipfile.ZipFile(source, "w") as opened:
            for name in files:
                opened.write(tmp_path / name, name)
    with pytest.raises(ConversionError, match="is the full ADE20K release") as error:
        ade20k.convert_ade20k(source, tmp_path / "out")
    assert "places/ADEchallenge/ADEChallengeData2016.zip" in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off"])
def test_broken_archive_is_named(content, tmp_path):
    archive = tmp_path / "ADEChallengeData2016.zip"
    archive.write_bytes(content)
    with pytest.raises(ConversionError, match=f"{archive}: .*download it again"):
        ade20k.convert_ade20k(archive, tmp_path / "out")


@pytest.mark.parametrize("damage", ["data", "encrypted", "method"])
def test_ade20k_damaged_file_in_the_archive_is_named(ade, tmp_path, damage):
    folder, archive = ade
    name = f"{folder.name}/images/training/ADE_train_00000001.jpg"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for path in sorted(folder.rglob("*")):
            opened.write(path, path.relative_to(tmp_path))
        start = opened.getinfo(name).header_offset + 30 + len(name)
    data = bytearray(archive.read_bytes())
    listed = data.rindex(name.encode()) - 46  # its entry in the list at the end
    position, value = {
        "data": (start, 7),
        "encrypted": (listed + 8, 1),
        "method": (listed + 10, 99),
    }[damage]
    data[position] = value
    archive.write_bytes(data)
    with pytest.raises(ConversionError, match=f"{archive}: {name}: .*download it again"):
        ade20k.convert_ade20k(archive, tmp_path / "out", allow_partial=True)
    assert not list((tmp_path / "out").rglob("*00000001.jpg"))


def test_ade20k_with_broken_masks(ade, tmp_path):
    folder, _ = ade
    save_mask(folder / "annotations/training/ADE_train_00000000.png", np.full(SHAPE, 151, np.uint8))
    (folder / "annotations/training/ADE_train_00000001.png").unlink()
    with pytest.raises(ConversionError) as error:
        ade20k.convert_ade20k(folder, tmp_path / "out", allow_partial=True)
    lines = str(error.value).splitlines()
    assert re.match(r"training: label-range: .*00000000.png: .*151 \(432 pixels\)", lines[0])
    assert re.match(r"training: missing-mask: .*00000001.png", lines[1])
    assert not (tmp_path / "out").exists()


# --- all ------------------------------------------------------------------------------------------


def test_published_counts():
    assert voc_aug.PUBLISHED == {
        "train": 1464,
        "val": 1449,
        "trainval": 2913,
        "trainaug": 10582,
        "aug": 10582 - 1464,
    }
    assert ade20k.PUBLISHED == {"training": 20210, "validation": 2000}
    assert camvid.PUBLISHED == {"train": 367, "val": 101, "test": 233}
    assert cityscapes.PUBLISHED == {"train": 2975, "val": 500, "test": 1525}
    require_counts(ade20k.PUBLISHED, ade20k.PUBLISHED, allow_partial=False)
    with pytest.raises(ConversionError, match="no image"):
        require_counts({"training": 0}, ade20k.PUBLISHED, allow_partial=True)


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def fail(path):
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(tmp_path / "a.png", fail)
    assert list(tmp_path.iterdir()) == []
    assert write_whole(tmp_path / "a.png", lambda path: path.write_text("all"))
    assert not write_whole(tmp_path / "a.png", fail)
    assert (tmp_path / "a.png").read_text() == "all"


def test_tool_from_the_command_line(city):
    """Two worker processes."""
    tool = CONFIGS.parent / "tools/dataset_converters/cityscapes.py"
    done = run_script(tool, city, "--nproc", "2", "--allow-partial")
    assert done.returncode == 0, done.stderr
    assert "train 2, val 2, test 2; every pair was read" in done.stdout


def test_failure_is_a_message(city, capsys):
    flags = [str(city), "--nproc", "0", "--allow-partial"]
    assert cityscapes_command.main(flags) == 0
    mask = next(city.rglob("*labelTrainIds.png"))
    mask.write_bytes(b"")
    assert cityscapes_command.main(flags) == 1
    assert f"{mask}: is empty" in capsys.readouterr().err
    assert cityscapes_command.main(flags[:-1]) == 1
    assert "train: 2 of 2975" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["voc_aug", "cityscapes", "ade20k", "camvid"])
def test_help_says_where_the_archives_come_from(name, capsys):
    with pytest.raises(SystemExit) as exit_:
        importlib.import_module(f"mmseg_ext.commands.{name}").main(["--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert re.search(r"https?://", shown) and "--allow-partial" in shown
    assert f"python tools/dataset_converters/{name}.py" in shown


def test_a_wrong_number_of_processes_is_a_usage_error(capsys):
    for value in ("-1", "two"):
        with pytest.raises(SystemExit) as exit_:
            ade20k_command.main(["archive.zip", "--nproc", value])
        assert exit_.value.code == 2
        assert f"--nproc: must be 0 or more, not '{value}'" in capsys.readouterr().err


# --- data that is not there -----------------------------------------------------------------------

ALL_BASES = sorted(path.stem for path in (CONFIGS / "_base_/datasets").glob("*.py"))


@pytest.mark.parametrize("base", [base for base in ALL_BASES if base != "shapes"])
def test_missing_data_is_a_message(base, tmp_path):
    """For every dataset base: the path, the layout and a command that exists."""
    cfg = Config.fromfile(CONFIGS / "_base_/datasets" / f"{base}.py")
    set_data_root(cfg, tmp_path / "nothing")
    for dataset in datasets(cfg):
        with pytest.raises(MissingDataError) as error:
            DATASETS.build(dataset)
        message = str(error.value)
        assert message.startswith(str(tmp_path / "nothing")) and " is not there." in message
        folder = Path(dataset["data_prefix"]["img_path"]).parts[0]
        assert re.search(rf"^    {folder}/", message, re.M)
        (tool,) = re.findall(r"python (tools/dataset_converters/\w+\.py)", message)
        assert (CONFIGS.parent / tool).is_file()


@pytest.mark.parametrize("layout", BASES)
def test_half_of_the_data(layout, tmp_path):
    """Label maps' folder missing, and a folder without images: the same message."""
    tree = make_tree(layout, tmp_path)
    config = tree.config().val_dataloader.dataset
    for path in {mask for _, mask in tree.pairs["val"]}:
        path.unlink()
    masks, images = (tree.root / config["data_prefix"][k] for k in ("seg_map_path", "img_path"))
    shutil.rmtree(masks)
    with pytest.raises(MissingDataError, match=f"{masks} is not there.*\n.*expects"):
        DATASETS.build(config)
    masks.mkdir()
    if config.get("ann_file"):
        (tree.root / config["ann_file"]).write_text("")
    else:
        shutil.rmtree(images)
        images.mkdir()
    with pytest.raises(MissingDataError, match=r": no image\.\n.*expects"):
        DATASETS.build(config)


def test_shapes_are_made_at_first_use(tmp_path):
    cfg = Config.fromfile(CONFIGS / "_base_/datasets/shapes.py")
    dataset = cfg.val_dataloader.dataset
    dataset.update(data_root=str(tmp_path / "shapes"), recipe=dict(train=1, val=2, size=32))
    built = DATASETS.build(dataset)
    assert len(built) == 2
    assert built.get_data_info(0)["num_classes"] == len(built.metainfo["classes"])
