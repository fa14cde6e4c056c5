"""Batches of images of different sizes, in validation and testing, give the results of batch 1."""

from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from PIL import Image

from mmseg_ext.engine.build import build_test_runner, build_train_runner
from tests.engine.runs import write_config

SLIDE = {"mode": "slide", "crop_size": (16, 16), "stride": (8, 8)}


class Predictions(Hook):
    """The label maps by the name of the image, in the order of the dataset."""

    def __init__(self):
        self.maps = {}

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        for image, sample in zip(data_batch["data_samples"], outputs, strict=True):
            assert image.img_path == sample.img_path
            self.maps[Path(sample.img_path).name] = sample.pred_sem_seg.data

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        for sample in outputs:
            self.maps[Path(sample.img_path).name] = sample.pred_sem_seg.data


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with images of three sizes, in an order in which all batches are mixed."""
    folder = tmp_path_factory.mktemp("mixed")
    write_config(folder)
    for i in range(8):
        for path in (folder / f"data/images/{i}.png", folder / f"data/labels/{i}.png"):
            if i % 3:
                Image.open(path).crop((0, 0, 32, 16 if i % 3 == 1 else 24)).save(path)
    return folder


def found(runner, stage: str) -> tuple[dict, dict]:
    """Return the scores and label maps of a validation or a test with random weights."""
    hook = Predictions()
    runner.register_hook(hook)
    torch.manual_seed(0)
    for parameter in runner.model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.0)
    return getattr(runner, stage)(), hook.maps


def uses_strips(model) -> bool:
    return hasattr(model, "predicts_in_strips") and model.predicts_in_strips()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model.type": "EncoderDecoder"},
        {"model.test_cfg": SLIDE},
        {"model.data_preprocessor.test_cfg": {"size_divisor": 48}, "model.type": "EncoderDecoder"},
    ],
    ids=["strips", "stock", "windows", "padded"],
)
def test_a_validation(folder, options):
    results = []
    for batch in (1, 3):
        given = {"val_dataloader.batch_size": batch, **options}
        runner = build_train_runner(str(folder / "tiny.py"), given, str(folder / "work"))
        assert uses_strips(runner.model) == ("model.type" not in options)
        results.append(found(runner, "val"))
    (one, maps_one), (three, maps_three) = results
    assert one == three and list(maps_one) == list(maps_three) and len(maps_one) == 8
    for name, labels in maps_one.items():
        assert torch.equal(labels, maps_three[name])
    assert len(set(torch.cat([labels.flatten() for labels in maps_one.values()]).tolist())) > 1


@pytest.mark.parametrize("kind", ["StreamingSegTTAModel", "SegTTAModel"])
def test_the_views_of_a_test(folder, kind):
    torch.save({"state_dict": {}}, folder / "none.pth")
    results = []
    for batch in (1, 3):
        options = {"test_dataloader.batch_size": batch, "tta_model.type": kind}
        words = str(folder / "tiny.py"), str(folder / "none.pth"), options, str(folder / "work")
        runner = build_test_runner(*words, tta=True)
        assert uses_strips(runner.model.module)
        runner._has_loaded = True  # no weights
        results.append(found(runner, "test"))
    (one, maps_one), (three, maps_three) = results
    assert one == three and len(maps_one) == 8
    for name, labels in maps_one.items():
        assert torch.equal(labels, maps_three[name])
