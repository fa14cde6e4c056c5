"""The demo over images and folders, and mmsegmentation's own ways to predict."""

import numpy as np
import pytest
import torch
from mmengine.runner import save_checkpoint
from mmseg.apis import inference_model, init_model
from PIL import Image

from mmseg_ext import get_model
from mmseg_ext.commands.image_demo import main
from mmseg_ext.datasets.metainfo import classes_and_palette
from mmseg_ext.inference.models import DEFAULT
from mmseg_ext.inference.predictor import Predictor
from tests.configs import CONFIGS
from tests.models import randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")
META = {"classes": list("abcdef"), "palette": [[40 * i, 0, 9] for i in range(6)]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    torch.manual_seed(0)
    model = init_model(CONFIG, None, device="cpu")
    path = tmp_path_factory.mktemp("weights") / "weights.pth"
    meta = {"dataset_meta": META}
    save_checkpoint({"state_dict": randomise(model).state_dict(), "meta": meta}, str(path))
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """Five images of three shapes, one of them truncated, in a tree."""
    root = tmp_path / "images"
    (root / "deep").mkdir(parents=True)
    random = np.random.RandomState(0)
    sizes = {"a.png": (64, 64), "a.bmp": (48, 80), "b.png": (64, 64), "deep/c.png": (50, 70)}
    for name, size in sizes.items():
        pixels = random.randint(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / name)
    (root / "z.png").write_bytes((root / "a.png").read_bytes()[:2000])
    return root


def read(path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_a_folder_is_segmented_and_broken_images_are_named(folder, checkpoint, capsys):
    """Subfolders only with --recursive; results in the folder are no input of a second run."""
    out = folder / "out"
    words = [str(folder), CONFIG, checkpoint, "--out", str(out)]
    assert main(words) == 1
    assert not (out / "labels/deep").exists()
    words.append("--recursive")
    for _ in range(2):
        assert main(words) == 1
        captured = capsys.readouterr()
        assert "4 images segmented" in captured.out
        assert f"error: {folder}/z.png: is truncated (2000 bytes)" in captured.err
    images = {"a.png.png": "a.png", "a.bmp.png": "a.bmp", "b.png": "b.png"}
    images["deep/c.png"] = "deep/c.png"
    assert {str(p.relative_to(out / "labels")) for p in out.glob("labels/**/*.png")} == set(images)
    model = init_model(CONFIG, checkpoint, device="cpu")
    for result, image in images.items():
        expected = inference_model(model, str(folder / image)).pred_sem_seg.data[0].numpy()
        labels = read(out / "labels" / result)
        assert (labels == expected).all()
        overlay = read(out / "overlays" / result)[: labels.shape[0], : labels.shape[1]].astype(int)
        mixed = (read(folder / image) + np.array(META["palette"])[labels]) / 2
        assert np.abs(overlay - mixed).max() <= 1


@pytest.mark.slow
def test_the_packages_own_weights(tmp_path, capsys):
    """A photo alone, of any size; the terminal says what the weights are."""
    pixels = np.random.RandomState(0).randint(0, 256, (203, 301, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    assert main([str(tmp_path / "photo.png"), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    for told in ("ea_r18_fpn_camvid_6k.pth", ": mIoU 6", "11 classes of street", "non-commercial"):
        assert told in printed
    labels = read(tmp_path / "out/labels/photo.png")
    assert (labels == Predictor(get_model(DEFAULT, pretrained=True))(pixels).labels).all()


def test_large_and_tiny_images(folder, checkpoint, tmp_path, capsys):
    Image.new("RGB", (1, 1)).save(folder / "one.png")
    words = [str(folder), CONFIG, checkpoint, "--out", str(tmp_path / "out"), "--max-pixels"]
    assert main([*words, str(64 * 64 - 1)]) == 1
    assert capsys.readouterr().err.count("allow it with --max-pixels") == 3
    assert main([*words, str(64 * 64)]) == 1  # because of the truncated one
    names = {"one.png", "a.png.png", "a.bmp.png", "b.png"}
    assert {p.name for p in (tmp_path / "out/labels").iterdir()} == names
    assert read(tmp_path / "out/labels/one.png").shape == (1, 1)
    plain = read(tmp_path / "out/overlays/b.png")
    assert main([str(folder / "b.png"), *words[1:], "5000", "--with-labels"]) == 0
    named = read(tmp_path / "out/overlays/b.png")
    assert named.shape == plain.shape and (named != plain).any()


def test_more_than_256_classes(tmp_path, folder):
    """Label maps are then PNGs of 16 bits."""
    path = tmp_path / "many.py"
    path.write_text(
        f"_base_ = {CONFIG!r}\n"
        "model = dict(decode_head=dict(num_classes=300))\n"
        "test_dataloader = dict(dataset=dict(_delete_=True, type='CheckedDataset',\n"
        "    pipeline=_base_.test_pipeline, metainfo=dict(classes=[str(i) for i in range(300)])))\n"
    )
    model = get_model(str(path))
    with torch.no_grad():
        model.decode_head.conv_seg.bias[299] = 1e4
    torch.save({"state_dict": model.state_dict()}, tmp_path / "many.pth")
    words = [str(folder / "a.png"), str(path), str(tmp_path / "many.pth")]
    assert main([*words, "--opacity", "1", "--out", str(tmp_path / "out")]) == 0
    labels = read(tmp_path / "out/labels/a.png")
    assert labels.dtype == np.uint16 and (labels == 299).all()
    overlay = read(tmp_path / "out/overlays/a.png")
    assert (overlay[:64, :64] == model.dataset_meta["palette"][299]).all()


def test_random_weights_are_a_warning(folder, tmp_path, capsys):
    assert main([str(folder / "a.png"), CONFIG, "none", "--out", str(tmp_path / "out")]) == 0
    assert "random weights" in capsys.readouterr().err


def test_bad_arguments_are_one_line(folder, checkpoint, own, tmp_path, capsys):
    image = str(folder / "a.png")
    for words, message in (
        (["nowhere", CONFIG, "none"], "nowhere: does not exist"),
        ([image, CONFIG], f"{CONFIG}: name a checkpoint"),
        ([image, CONFIG, str(tmp_path / "w.pth")], "w.pth"),
        ([image, CONFIG, "none", "--device", "cuda:99"], "device 'cuda:99' cannot be used"),
        ([str(folder / "z.png"), CONFIG, checkpoint], "z.png: is truncated"),
        ([image, own, checkpoint], f"{checkpoint}: does not fit the config: "),
        ([image, CONFIG, "none", "--opacity", "1.5"], "--opacity=1.5: choose"),
        ([image, CONFIG, "none", "--opacity", "-1"], "--opacity=-1.0: choose"),
    ):
        assert main([*words, "--out", str(tmp_path / "out")]) == 1
        line = capsys.readouterr().err
        assert message in line and line.count("\n") == 1


@pytest.fixture
def own(tmp_path) -> str:
    """A config whose three classes stand in its `metainfo`, in a wrapper of datasets."""
    path = tmp_path / "own.py"
    path.write_text(
        f"_base_ = {CONFIG!r}\n"
        "model = dict(decode_head=dict(num_classes=3))\n"
        "one = dict(type='CheckedDataset', data_root='nowhere', pipeline=_base_.test_pipeline,\n"
        f"    metainfo=dict(classes=('soil', 'crop', 'weed'), palette={META['palette'][:3]}))\n"
        "test_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset',\n"
        "    datasets=[one, one]))\n"
    )
    return str(path)


def test_classes_are_those_of_the_config(own, folder, tmp_path):
    """Where no checkpoint names them."""
    meta = get_model(own).dataset_meta
    assert tuple(meta["classes"]) == ("soil", "crop", "weed")
    assert [list(colour) for colour in meta["palette"]] == META["palette"][:3]
    assert main([str(folder / "a.png"), own, "none", "--out", str(tmp_path / "out")]) == 0


def test_classes_without_the_data():
    """As building the dataset gives them: a subset of METAINFO takes its colours along."""
    stock = {"type": "PascalVOCDataset", "ann_file": "nowhere.txt"}
    assert len(classes_and_palette(stock)["classes"]) == 21
    part = classes_and_palette({**stock, "metainfo": {"classes": ["cat", "bird"]}})
    assert part == {"classes": ("cat", "bird"), "palette": [[64, 0, 0], [128, 128, 0]]}
    assert len(classes_and_palette({"type": "BaseSegDataset", "metainfo": {"classes": "ab"}})) == 2
    with pytest.raises(ValueError, match="CheckedDataset has no classes"):
        classes_and_palette({"type": "RepeatDataset", "dataset": {"type": "CheckedDataset"}})
    with pytest.raises(ValueError, match="no dataset of type 'Nothing'"):
        classes_and_palette({"type": "Nothing"})
