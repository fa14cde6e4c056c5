"""Every way from a photo to labels shows the photo to the network at the scale of the test.

The network finds fine stripes: those of at most about six of its pixels. The photo has stripes of
12 and of 48 pixels. At a third of its size only the former are fine, at its own size neither.
"""

import json
import runpy
import sys
import warnings
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import BaseModule
from mmseg.apis import inference_model
from mmseg.registry import MODELS
from PIL import Image
from torch.nn import functional as F

from mmseg_ext import Predictor, get_model
from mmseg_ext.commands import run
from mmseg_ext.inference import export as export_module  # replaced, for the command writes a file
from mmseg_ext.inspection import attention_pictures
from tests.configs import CONFIGS
from tests.messages import check_message, raises_message, warns_message

DEMO = CONFIGS.parent / "demo"


@MODELS.register_module()
class FineStripes(BaseModule):
    """One feature map (B, 1, H, W): the contrast between neighbors, averaged over 5x5 pixels."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))  # a model without parameters has no device

    def forward(self, x):
        gray = x.mean(1, keepdim=True)
        contrast = (gray - F.avg_pool2d(gray, 3, 1, 1, count_include_pad=False)).abs()
        return (F.avg_pool2d(contrast, 5, 1, 2, count_include_pad=False),)


HEAD = dict(type="FCNHead", in_channels=1, in_index=0, channels=1, num_convs=0, concat_input=False)
HEAD |= dict(num_classes=2, out_channels=2, dropout_ratio=0.0)
RESIZE = dict(type="Resize", scale=(128, 128), keep_ratio=True)
KEEP = dict(type="Resize", scale_factor=1.0, keep_ratio=True)
SLIDE = dict(mode="slide", crop_size=(96, 96), stride=(64, 64))
LOAD, PACK = dict(type="LoadImageFromFile"), dict(type="PackSegInputs")


def config_of(resize=RESIZE, test_cfg=None, **more) -> Config:
    """The settings of a model that sees photos after `resize`; Nones are left out."""
    preprocessor = dict(type="SegDataPreProcessor", mean=[0.0] * 3, std=[64.0] * 3, bgr_to_rgb=True)
    model = dict(type="StripEncoderDecoder", data_preprocessor=preprocessor, decode_head=HEAD)
    model |= dict(backbone=dict(type="FineStripes"), test_cfg=test_cfg or dict(mode="whole"))
    steps = [resize, PACK] if resize else [PACK]
    metainfo = dict(classes=["plain", "fine"], palette=[[0, 0, 0], [255, 255, 255]])
    dataset = dict(type="BaseSegDataset", metainfo=metainfo, pipeline=[LOAD, *steps])
    flips = [dict(type="RandomFlip", prob=p, direction="horizontal") for p in (0.0, 1.0)]
    views = dict(type="TestTimeAug", transforms=[steps[:-1] or [KEEP], flips, [PACK]])
    loader = dict(dataset=dataset)
    config = dict(model=model, test_dataloader=loader, tta_pipeline=[LOAD, views])
    config["test_pipeline"] = dataset["pipeline"]  # of mmsegmentation's function
    return Config(config | more, cfg_text="own", filename="own.py")


def model_of(*args, **more):
    model = get_model(config_of(*args, **more))
    with torch.no_grad():
        model.decode_head.conv_seg.weight[:] = torch.tensor([0.0, 10.0])[:, None, None, None]
        model.decode_head.conv_seg.bias[:] = torch.tensor([5.0, 0.0])
    return model


def stripes(height: int, width: int, fine: int = 12, coarse: int = 48) -> np.ndarray:
    """A photo whose left part and middle have fine stripes, and the rest coarse ones."""
    x = np.arange(width)
    rows = [np.where(x // (period // 2) % 2, 220, 30) for period in (fine, coarse)]
    photo = np.tile(rows[1], (height, 1))
    photo[:, : width // 3] = rows[0][: width // 3]
    top, left = height // 3, width // 2
    photo[top : 2 * top, left : left + width // 4] = rows[0][left : left + width // 4]
    return np.stack([photo] * 3, 2).astype(np.uint8)


PHOTO = stripes(288, 384)
FULL = stripes(288, 384, 4, 16)  # at the scale of the network


def agreement(labels, expected) -> float:
    assert labels.shape == expected.shape
    return float((np.asarray(labels) == expected).mean())


@pytest.fixture
def command_export(monkeypatch, tmp_path):
    """Run the command `export`; return a function of images in place of the file, and metadata."""

    def export(model, *words):
        given = {}

        def keep(module, path, size, dynamic, metadata, channels, name):
            given.update(module=module, metadata=json.loads(json.dumps(metadata)))
            path.write_bytes(b"")

        monkeypatch.setattr(export_module, "write_onnx", keep)
        monkeypatch.setattr(export_module, "ExportedSegmentor", lambda path: given["module"])
        monkeypatch.setattr("mmseg_ext.commands.export.named_model", lambda args: model)
        assert run("export", ["own.py", "none", *words, "--out", str(tmp_path / "a.onnx")]) == 0
        sizes = []

        def scores(images):
            sizes.append(images.shape[2:])
            with torch.no_grad():
                return given["module"](torch.from_numpy(images)).numpy()

        return scores, given["metadata"], sizes

    return export


def by_test(model, photo):
    """A sample of the test dataset, in the model's `test_step`."""
    pipeline = model.cfg.test_dataloader.dataset.pipeline
    sample = Compose(pipeline[1:])({"img": photo[..., ::-1], **shapes(photo)})
    (result,) = model.test_step(pseudo_collate([sample]))
    return result.pred_sem_seg.data[0].numpy()


def by_mmsegmentation(model, photo):
    return inference_model(model, photo[..., ::-1]).pred_sem_seg.data[0].numpy()


def shapes(photo) -> dict:
    return {"img_shape": photo.shape[:2], "ori_shape": photo.shape[:2], "img_path": "photo.png"}


def by_batch(model, photo):
    turned = np.ascontiguousarray(photo.transpose(1, 0, 2))
    return Predictor(model, batch_size=3)([photo, turned, photo])[2].labels


def by_app(model, photo, tmp_path, monkeypatch):
    """The page's overlay of black and white classes."""
    monkeypatch.setitem(sys.modules, "gradio", MagicMock(Error=RuntimeError))
    segment = runpy.run_path(str(DEMO / "app.py"))["segment"]
    globals_ = segment.__wrapped__.__globals__
    globals_["load"] = lambda *names: model
    Image.fromarray(photo).save(tmp_path / "photo.png")
    overlay = segment(str(tmp_path / "photo.png"))[0]
    return (np.asarray(overlay)[..., 0] > photo[..., 0] // 2 + 60).astype(np.uint8)


def by_attention(model, photo, tmp_path):
    """The labels next to attention maps, at the size of the network's input."""
    Image.fromarray(photo).save(tmp_path / "photo.png")
    image, _, original = attention_pictures.network_input(model, str(tmp_path / "photo.png"))
    labels = attention_pictures.capture_inputs(model, {}, image)[1].byte().numpy()
    return np.asarray(Image.fromarray(labels).resize(original[::-1], Image.Resampling.NEAREST))


def by_export(*words):
    def labels(model, photo, command_export):
        segment = runpy.run_path(str(DEMO / "run_exported.py"))["segment"]
        return segment(*command_export(model, *words)[:2], photo)

    return labels


WAYS = {
    # The least share of equal labels, and where it is not 1 the reason.
    "test": (by_test, 1),
    "mmsegmentation": (by_mmsegmentation, 1),
    "batch": (by_batch, 1),
    "fast": (lambda m, p: Predictor(m, fast=True)(p).labels, 1),
    "page": (by_app, 1),
    "flips": (lambda m, p: Predictor(m, tta=True)(p).labels, 0.98),  # the mean of two views
    "tiles of 120": (lambda m, p: Predictor(m, tile=120)(p).labels, 0.98),  # seams, and their place
    "tiles of 192": (lambda m, p: Predictor(m, tile=192)(p).labels, 0.98),  # in the pixels of the
    "tiles of 300": (lambda m, p: Predictor(m, tile=300)(p).labels, 0.98),  # resized image
    "one tile": (lambda m, p: Predictor(m, tile=384)(p).labels, 1),
    "flips of tiles": (lambda m, p: Predictor(m, tta=True, tile=192)(p).labels, 0.97),  # both
    "attention maps": (by_attention, 0.97),  # labels of the network's size
    "export": (by_export("--dynamic"), 0.999),  # another resize, in float32
    "export, fixed": (by_export(), 0.99),  # gray below the photo
    "export, smaller": (by_export("--shape", "64", "80"), 0.98),  # means of windows
}


@pytest.mark.parametrize("kind", ["resized", "windows"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_the_labels_of_the_test(way, kind, request, tmp_path, monkeypatch):
    model = model_of() if kind == "resized" else model_of(KEEP, SLIDE)
    photo = PHOTO if kind == "resized" else FULL
    expected = Predictor(model)(photo).labels
    assert 0.3 < expected.mean() < 0.6
    function, least = WAYS[way]
    names = function.__code__.co_varnames[2 : function.__code__.co_argcount]
    fixtures = {name: request.getfixturevalue(name) for name in names}
    assert agreement(function(model, photo, **fixtures), expected) >= least


STRETCH = dict(type="Resize", scale=(128, 96), keep_ratio=False)
SHORT = dict(type="ResizeShortestEdge", scale=96, max_size=200)
MULTIPLE = [RESIZE, dict(type="ResizeToMultiple", size_divisor=32)]


@pytest.mark.parametrize("resize", [STRETCH, SHORT, MULTIPLE, dict(RESIZE, scale=128)])
def test_tiles_are_resized_like_their_image_by_every_resize(resize):
    steps = resize if isinstance(resize, list) else [resize]
    model = model_of()
    model.cfg.test_dataloader.dataset.pipeline = [LOAD, *steps, PACK]
    whole, tiles = Predictor(model)(PHOTO), Predictor(model, tile=192)(PHOTO)
    assert whole.reduction == tiles.reduction == 3
    assert agreement(tiles.labels, whole.labels) > 0.98
    sizes = []
    wide = Predictor(model, tile=60, overlap=0)
    step = wide.model.test_step
    wide.model.test_step = lambda data: sizes.append(data["inputs"][0].shape[1:]) or step(data)
    wide(stripes(60, 480))
    factor = Predictor(model).prepare(stripes(60, 480))["inputs"].shape[2] / 480
    assert {size[1] for size in sizes} == {round(60 * factor)}


class KnownShift(BaseTransform):
    """A transform of another package that keeps the size, or does not."""

    def __init__(self, side=None):
        self.side = side

    def transform(self, results):
        image = results["img"] + np.uint8(1)
        results["img"] = image if self.side is None else image[: self.side, : self.side]
        return results


def test_a_transform_of_another_package_may_keep_the_size_of_tiles(monkeypatch):
    monkeypatch.setattr(KnownShift, "__module__", "another.package")
    model = model_of()
    model.cfg.test_dataloader.dataset.pipeline[1:1] = [dict(type=KnownShift)]
    whole = Predictor(model)(PHOTO)
    assert agreement(Predictor(model, tile=192)(PHOTO).labels, whole.labels) > 0.98
    model.cfg.test_dataloader.dataset.pipeline[1]["side"] = 200
    Predictor(model)(PHOTO)
    with raises_message(ValueError, "KnownShift", where="tile: ", todo="without"):
        Predictor(model, tile=192)(PHOTO)
    inside = dict(type="RandomApply", transforms=[RESIZE], prob=1.0)
    model.cfg.test_dataloader.dataset.pipeline[1] = inside
    with raises_message(ValueError, "RandomApply", where="tile: ", todo="without"):
        Predictor(model, tile=192)(PHOTO)


@pytest.mark.parametrize("tile", [128, 200, 1000])
def test_a_model_of_small_images_sees_tiles_at_their_scale(tile):
    """Trained on images of 128 pixels; a photo of 384 with objects of the same size in pixels."""
    model = model_of(image_sides=[100, 128], crop_size=(96, 96))
    expected = Predictor(model_of(KEEP))(FULL).labels
    with warns_message(UserWarning, 384, "100 to 128", 0.33, where="image: ", todo="--tile 128"):
        reduced = Predictor(model)(FULL)
    assert agreement(reduced.labels, expected) < 0.8 and reduced.reduction == 3
    with warnings.catch_warnings(action="error"):
        tiles = Predictor(model, tile=tile)(FULL)
    assert tiles.reduction == 1 and agreement(tiles.labels, expected) > 0.98


def test_a_model_of_large_images_sees_a_part_of_one_at_their_scale():
    model, part = model_of(image_sides=[384, 400]), PHOTO[:96, :128]
    expected = Predictor(model)(PHOTO).labels[:96, :128]
    predictor = Predictor(model)
    with warns_message(UserWarning, 128, "384 to 400", 3, where="image: ", todo="tile=400"):
        predictor(part)
    with warnings.catch_warnings(action="error"):
        predictor(part)  # it is told once
        tile = Predictor(model, tile=400)(part)
    assert tile.reduction == pytest.approx(3, rel=0.01)
    assert agreement(tile.labels, expected) > 0.9


@pytest.mark.parametrize(
    ("resize", "sides"),
    [(RESIZE, [300, 400]), (RESIZE, [260, 260]), (RESIZE, None), (KEEP, [9, 9])],
)
def test_an_image_at_the_scale_of_training_brings_no_warning(resize, sides):
    """Of the training's sizes or nearly, or any image if the config does not resize."""
    with warnings.catch_warnings(action="error"):
        Predictor(model_of(resize, image_sides=sides))(PHOTO)


def test_augmentation_at_another_scale_than_the_test_is_told():
    """As mmsegmentation's pipelines with factors of the photo's own size."""
    model = model_of()
    factors = [dict(KEEP, scale_factor=factor) for factor in (0.75, 1.25)]
    views = dict(type="TestTimeAug", transforms=[factors, [PACK]])
    model.cfg.tta_pipeline = [LOAD, views]
    with warns_message(UserWarning, "0.75 to 1.2", 0.33, where="image: ", todo="without tta"):
        Predictor(model, tta=True)(PHOTO)
    with warnings.catch_warnings(action="error"):
        result = Predictor(model, tta=True)(stripes(72, 96))
    assert result.reduction == pytest.approx(4 / 3)


def test_a_side_of_no_pixels_is_one_line():
    for tile in (None, 64):
        with raises_message(ValueError, "2x700", where="image: ", todo=True):
            Predictor(model_of(), tile=tile)(np.zeros((700, 2, 3), np.uint8))


@pytest.mark.parametrize(
    ("resize", "test_cfg", "words", "size", "window", "stride"),
    [
        (RESIZE, None, [], [128, 128], [128, 128], [112, 112]),
        (dict(RESIZE, scale=[256, 64]), None, [], [64, 64], [64, 64], [56, 56]),
        (dict(RESIZE, scale=[128, 64]), None, [], [64, 128], [64, 128], [56, 112]),
        (STRETCH, None, [], [96, 128], [96, 128], [84, 112]),
        (None, None, [], [32, 40], [32, 40], [28, 35]),
        (KEEP, SLIDE, [], [96, 96], [96, 96], [64, 64]),
        (KEEP, SLIDE, ["--shape", "64"], [64, 64], [64, 64], [56, 56]),
        (KEEP, SLIDE, ["--dynamic"], [96, 96], [96, 96], [64, 64]),
        (RESIZE, None, ["--dynamic"], [32, 40], None, None),
    ],
)
def test_an_exported_file_has_the_shape_of_the_test(
    resize, test_cfg, words, size, window, stride, command_export
):
    """And not of the training's crop."""
    model = model_of(resize, test_cfg, crop_size=(32, 40), image_sides=[300, 400])
    metadata = command_export(model, *words)[1]
    found = [metadata[key] for key in ("size", "window", "stride", "image_sides")]
    assert found == [size, window, stride, [300, 400]]


def test_a_transform_that_the_file_does_not_describe_is_named(command_export, capsys):
    model = model_of()
    model.cfg.test_dataloader.dataset.pipeline = [LOAD, *MULTIPLE, PACK]
    metadata = command_export(model)[1]
    assert metadata["scale"] == [128, 128] and metadata["scale_factor"] is None
    assert "ResizeToMultiple" in capsys.readouterr().out
    metadata = command_export(model_of(dict(KEEP, scale_factor=0.5)))[1]
    assert metadata["scale_factor"] == [0.5, 0.5] and metadata["keep_ratio"]
    assert "Resize" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [(), ("--shape", "96"), ("--dynamic",)])
def test_the_export_compares_photos_as_users_run_the_file(words, command_export, tmp_path, capsys):
    """Besides photos of the file's shape; a photo of 384x288 is filled up to 128x128."""
    model, photo = model_of(), tmp_path / "photo.png"
    Image.fromarray(PHOTO).save(photo)
    run, metadata, _ = command_export(model, *words, "--images", str(photo))
    printed = capsys.readouterr().out
    line = next(text for text in printed.splitlines() if text.startswith("photo.png"))
    labels = runpy.run_path(str(DEMO / "run_exported.py"))["segment"](run, metadata, PHOTO)
    share = agreement(labels, Predictor(model)(PHOTO).labels)
    assert line.endswith(f" {share:.2%}") and "same class 100.000%" in line
    assert ("are filled" in printed) == (words != ("--dynamic",))
    stretched = command_export(model_of(STRETCH))
    assert "are filled" not in capsys.readouterr().out and stretched


def test_the_example_tells_which_photos_are_at_another_scale(command_export):
    example = runpy.run_path(str(DEMO / "run_exported.py"))
    segment = example["segment"]

    def note(metadata, size):
        return example["seen"].Seen.from_metadata(metadata).note(*size, "use --training-scale")

    run, metadata, sizes = command_export(model_of(image_sides=[100, 128]))
    for size, ratio in (((288, 384), "0.33"), ((60, 20), "1.7")):
        check_message(note(metadata, size), "100 to 128", ratio, todo="--training-scale")
    assert not note(metadata, (128, 96)) and not note(metadata | {"image_sides": None}, (384, 288))
    assert not note(metadata | {"scale": None}, (384, 288))
    expected = Predictor(model_of(KEEP))(FULL).labels
    assert agreement(segment(run, metadata, FULL, True), expected) > 0.98
    assert set(sizes) == {(128, 128)} and len(sizes) > 6
    assert agreement(segment(run, metadata, FULL), expected) < 0.8
