"""What an audit of the data found: EXIF orientations, masks of 0 and 255, class counts, lists."""

import io
import os
import struct
import zipfile
import zlib

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.dataset import ClassBalancedDataset
from mmseg.registry import DATASETS, METRICS, TRANSFORMS
from PIL import Image
from scipy.io import savemat

from mmseg_ext.commands.check_dataset import main as check_dataset
from mmseg_ext.datasets.converters import ade20k, voc_aug
from mmseg_ext.datasets.files import decode, orientation, read_bytes
from mmseg_ext.datasets.metainfo import tell_class_counts
from mmseg_ext.errors import ConversionError, LabelError, UnreadableFileError

RIGHT_TOP, UPSIDE_DOWN = 6, 3
CHECKED = ["CheckedLoadImage", "CheckedLoadAnnotations"]
STOCK = ["LoadImageFromFile", "LoadAnnotations"]


def write_pair(folder, name="a", tag=UPSIDE_DOWN, values=(0, 1, 2), size=(6, 4)):
    """An image whose brightness is its label, with an EXIF orientation; as PNG, so exact."""
    label = np.random.RandomState(0).choice(values, size).astype(np.uint8)
    for part in ("images", "labels"):
        (folder / part).mkdir(exist_ok=True, parents=True)
    exif = Image.Exif()
    exif[0x0112] = tag
    pixels = np.repeat(label[..., None], 3, 2)
    Image.fromarray(pixels).save(folder / f"images/{name}.jpg", "PNG", exif=exif)
    Image.fromarray(label).save(folder / f"labels/{name}.png")
    return label


def dataset(folder, kind="CheckedDataset", loaders=CHECKED, classes=3, **more) -> dict:
    return dict(
        type=kind,
        data_root=str(folder),
        data_prefix=dict(img_path="images", seg_map_path="labels"),
        metainfo=dict(classes=[f"[c{i}] $x" for i in range(classes)]),
        pipeline=[dict(type=name) for name in loaders],
        **more,
    )


@pytest.mark.parametrize("tag", [UPSIDE_DOWN, RIGHT_TOP])
@pytest.mark.parametrize(
    ("kind", "loaders"),
    [
        ("CheckedDataset", CHECKED),
        ("CheckedDataset", ["LoadImageFromFile", "CheckedLoadAnnotations"]),  # as in a test
        ("BaseSegDataset", ["CheckedLoadImage", "LoadAnnotations"]),
    ],
)
def test_image_and_label_map_stay_together(kind, loaders, tag, tmp_path):
    label = write_pair(tmp_path, tag=tag)
    assert orientation((tmp_path / "images/a.jpg").read_bytes()) == tag
    sample = DATASETS.build(dataset(tmp_path, kind, loaders))[0]
    assert np.array_equal(sample["img"][..., 0], label)
    assert np.array_equal(sample["gt_seg_map"], label)


def test_an_image_without_a_label_map_is_turned(tmp_path):
    """A photograph that a trained model is shown; as mmsegmentation's own loader does."""
    label = write_pair(tmp_path)
    path = str(tmp_path / "images/a.jpg")
    image = TRANSFORMS.build(dict(type="CheckedLoadImage")).transform({"img_path": path})["img"]
    assert np.array_equal(image[..., 0], label[::-1, ::-1])


def config_of(folder, **settings):
    path = folder / "config.py"
    imports = "custom_imports = dict(imports=['mmseg_ext'], allow_failed_imports=False)\n"
    path.write_text(f"{imports}train_dataloader = {dict(dataset=dataset(folder, **settings))!r}\n")
    picture = str(folder / "overlays.png")
    return [str(path), "--workers", "0", "--overlays", picture]


def test_the_check_tells_of_orientations(tmp_path, capsys):
    """And draws names that hold what rich and matplotlib take for markup."""
    write_pair(tmp_path)
    assert check_dataset(config_of(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "train: note: 1 images carry an EXIF orientation, which is not applied" in shown
    assert "[c1] $x" in shown
    assert check_dataset(config_of(tmp_path, kind="BaseSegDataset", loaders=STOCK)) == 1
    assert "a.jpg: is turned by its EXIF orientation (3)" in capsys.readouterr().out


def test_masks_of_0_and_255_are_refused(tmp_path, capsys):
    for name in "ab":
        write_pair(tmp_path, name, tag=1, values=(0, 255))
    with pytest.raises(LabelError, match=r"a\.png and the others hold 0 and 255 alone"):
        DATASETS.build(dataset(tmp_path, classes=2))
    assert check_dataset(config_of(tmp_path, kind="BaseSegDataset", loaders=STOCK, classes=2)) == 1
    assert "train: binary-masks: " in capsys.readouterr().out
    write_pair(tmp_path, "b", tag=1, values=(0, 1, 255))
    assert len(DATASETS.build(dataset(tmp_path, classes=2))) == 2


@pytest.mark.parametrize(
    ("classes", "message"), [(1, "1 class leaves nothing"), (256, "256 classes does not fit")]
)
def test_1_and_256_classes_are_refused(classes, message, tmp_path, capsys):
    write_pair(tmp_path)
    with pytest.raises(LabelError, match=message):
        DATASETS.build(dataset(tmp_path, classes=classes))
    assert check_dataset(config_of(tmp_path, classes=classes)) == 2
    assert message in capsys.readouterr().err


def test_predictions_of_257_classes_are_not_written_as_8_bits(tmp_path):
    metric = METRICS.build(dict(type="CheckedIoUMetric", output_dir=str(tmp_path)))
    metric.dataset_meta = {"classes": [str(i) for i in range(257)]}
    with pytest.raises(ValueError, match="8 bits cannot hold the value 256"):
        metric.process({}, [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig"])
def test_a_list_in_another_encoding_is_named(encoding, tmp_path):
    write_pair(tmp_path)
    (tmp_path / "list.txt").write_bytes("a\n".encode(encoding))
    with pytest.raises(UnreadableFileError, match=r"list\.txt: is no plain UTF-8 text"):
        DATASETS.build(dataset(tmp_path, ann_file="list.txt"))


def test_classes_can_be_balanced(tmp_path):
    """Class 2 is in one image of four: of a threshold of 1/2 it is shown sqrt(2), so 2 times."""
    for name in "abc":
        write_pair(tmp_path, name, values=(0, 1))
    write_pair(tmp_path, "d", values=(0, 2))
    parts = DATASETS.build(dataset(tmp_path))
    assert [parts.get_cat_ids(i) for i in range(4)] == [[0, 1]] * 3 + [[0, 2]]
    balanced = ClassBalancedDataset(parts, oversample_thr=0.5)
    assert len(balanced) == 5


def test_label_loader_takes_the_classes_of_a_stock_dataset(tmp_path):
    label = write_pair(tmp_path)
    loader = dict(dataset=dict(type="RepeatDataset", times=2, dataset=dataset(tmp_path)))
    cfg = Config(dict(train_dataloader=loader))
    inner = cfg.train_dataloader.dataset.dataset
    tell_class_counts(cfg)
    assert "num_classes" not in inner.pipeline[1]  # its samples carry it
    inner.type = "BaseSegDataset"
    tell_class_counts(cfg)
    assert inner.pipeline[1].num_classes == 3
    assert np.array_equal(DATASETS.build(inner)[0]["gt_seg_map"], label)


# --- files that are made to harm ------------------------------------------------------------------


def test_a_pipe_is_no_file(tmp_path):
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    with pytest.raises(UnreadableFileError, match=r"pipe\.png: is no file"):
        read_bytes(str(path))  # it would wait for ever


def test_a_png_that_claims_gigabytes_is_not_decoded():
    buffer = io.BytesIO()
    Image.new("L", (4, 4)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = struct.pack(">II", 60_000, 60_000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    with pytest.raises(UnreadableFileError, match=r"bomb\.png: is too large \(60000x60000\)"):
        decode(bytes(data), "bomb.png", "unchanged", "cv2")


@pytest.mark.parametrize("name", [".", "ADEChallengeData2016/../../x.jpg", "/"])
def test_archive_members_with_odd_names(name, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(ConversionError, match="has no folder ADEChallengeData2016"):
        ade20k.convert_ade20k(tmp_path / "a.zip", tmp_path / "out", allow_partial=True)
    assert not (tmp_path / "out").exists()


def test_an_archive_that_unpacks_to_too_much(tmp_path):
    path = tmp_path / "a.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("ADEChallengeData2016/images/training/a.jpg", "w") as member,
    ):
        for _ in range(257):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**22
    with pytest.raises(ConversionError, match=r"unpacks to 1 files, 0\.3 GiB"):
        ade20k.convert_ade20k(path, tmp_path / "out", allow_partial=True)


@pytest.mark.parametrize("value", [np.nan, 1.5, -1.0, 21.0])
def test_mat_labels_that_are_no_classes(value, tmp_path):
    label = np.ones((3, 4))
    label[1, 1] = value
    savemat(tmp_path / "a.mat", {"GTcls": {"Segmentation": label}})
    with pytest.raises(ConversionError, match=r"a\.mat: values that are no class: \["):
        voc_aug.convert_mat(tmp_path / "a.mat", tmp_path)
    assert read_bytes(str(tmp_path / "a.mat")) and not list(tmp_path.glob("*.png"))
