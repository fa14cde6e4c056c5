"""The functions behind the page of demo/app.py, with a stand-in for Gradio."""

import runpy
import sys
import zipfile
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image

import mmseg_ext
from mmseg_ext.inference.models import DEFAULT  # the model of commands without a name
from tests.configs import CONFIGS, EXPERIMENTS
from tests.messages import raises_message

PHOTO = CONFIGS.parent / "demo/nuclei.png"


@pytest.fixture
def app(monkeypatch) -> dict:
    monkeypatch.setitem(sys.modules, "gradio", MagicMock(Error=RuntimeError))
    return runpy.run_path(str(CONFIGS.parent / "demo/app.py"))


@pytest.mark.parametrize("own", [True, False])
def test_a_photo_is_segmented_and_a_click_shows_attention(app, own, tmp_path):
    photo, settings = str(tmp_path / "photo.png"), []
    with Image.open(PHOTO) as image:
        image.crop((0, 0, 100, 60)).save(photo)
    if not own:
        config, file = str(EXPERIMENTS["fpn_lambda_camvid_800"]), str(tmp_path / "weights.pth")
        torch.save(mmseg_ext.get_model(config).state_dict(), file)
        settings = [config, file]
    overlay, summary, cleared = app["segment"](photo, *settings)
    assert overlay.size == (100, 60) and cleared is None
    model = app["load"](*(settings or [DEFAULT, ""]))
    if own:
        counted = len(mmseg_ext.Predictor(model)(photo).objects("nucleus", 16))
        assert f"nucleus: {counted}** (" in summary and "Apache-2.0" in summary
        assert "border" not in summary
    else:
        assert "nucleus" not in summary and "Apache-2.0" not in summary
    heats = [
        app["attend"](SimpleNamespace(index=place), photo, *settings)
        for place in ((5, 5), (99, 59))  # x, y
    ]
    assert all(heat.shape[2] == 3 and heat.dtype == np.uint8 for heat in heats)
    assert np.abs(heats[0].astype(int) - heats[1]).max() > 50
    with raises_message(RuntimeError, "'no'"):
        app["segment"](photo, "no", "")


def test_several_photos_give_a_table_and_an_archive(app, tmp_path):
    """Two photos have one name, and a broken one is in the messages; also of a project."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with Image.open(PHOTO) as image:
            image.crop((0, 0, 100, 60)).save(tmp_path / folder / "photo.png")
    (tmp_path / "c.png").write_bytes(b"text")
    photos = [str(tmp_path / name) for name in ("a/photo.png", "b/photo.png", "c.png")]
    project = tmp_path / "project"
    (project / "work_dir").mkdir(parents=True)
    (project / "config.py").write_text("raise ValueError('trained with other flags')\n")
    used = project / "work_dir/config.py"
    used.write_text(f"_base_ = {str(CONFIGS / f'{DEFAULT}.py')!r}\n")
    with raises_message(RuntimeError, where=f"{project}: ", todo="train"):
        app["segment_all"](photos, str(project))
    weights = mmseg_ext.get_model(DEFAULT, pretrained=True).state_dict()
    torch.save({"state_dict": weights}, project / "work_dir/best_mIoU_iter_9.pth")
    for model in (DEFAULT, str(project)):
        overlays, table, messages, archive = app["segment_all"](photos, model)
        assert len(overlays) == len(table["data"]) == 2
        (line,) = messages.splitlines()
        assert "c.png" in line and str(tmp_path) not in line
        counted = len(mmseg_ext.Predictor(DEFAULT)(photos[0]).objects("nucleus", 16))
        row = dict(zip(table["headers"], table["data"][0], strict=True))
        assert row["nucleus objects"] == str(counted)
        names = zipfile.ZipFile(archive).namelist()
        for name in ("labels/photo.png", "overlays/1_photo.png", "objects/photo.geojson"):
            assert name in names
        assert {"classes.csv", "objects.csv"} < set(names)
    with raises_message(RuntimeError, where="choose photos"):
        app["segment_all"](None)
    with raises_message(RuntimeError, "c.png"):
        app["segment_all"](photos[2:])


def test_the_page_offers_models_with_weights_and_opens_no_files(app, monkeypatch):
    for checkpoints, names in ((False, mmseg_ext.list_models(pretrained=True)), (True, None)):
        gradio = sys.modules["gradio"]
        gradio.reset_mock()
        app["build_page"](checkpoints)
        assert gradio.Textbox.called == checkpoints
        (offered, *_), _ = gradio.Dropdown.call_args
        assert offered == (names or mmseg_ext.list_models()) and DEFAULT in offered
    assert len(app["EXAMPLES"]) == 3
