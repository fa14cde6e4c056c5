"""The functions behind the page of demo/app.py, with a stand-in for Gradio."""

import runpy
import sys
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
        counted = len(mmseg_ext.Predictor(model)(photo).objects("nucleus"))
        assert f"{counted} nuclei" in summary and "Apache-2.0" in summary
    else:
        assert "nuclei" not in summary and "Apache-2.0" not in summary
    heats = [
        app["attend"](SimpleNamespace(index=place), photo, *settings)
        for place in ((5, 5), (99, 59))  # x, y
    ]
    assert all(heat.shape[2] == 3 and heat.dtype == np.uint8 for heat in heats)
    assert np.abs(heats[0].astype(int) - heats[1]).max() > 50
    with raises_message(RuntimeError, "'no'"):
        app["segment"](photo, "no", "")


def test_the_page_offers_models_with_weights_and_opens_no_files(app, monkeypatch):
    for checkpoints, names in ((False, mmseg_ext.list_models(pretrained=True)), (True, None)):
        gradio = sys.modules["gradio"]
        gradio.reset_mock()
        app["build_page"](checkpoints)
        assert gradio.Textbox.called == checkpoints
        (offered, *_), _ = gradio.Dropdown.call_args
        assert offered == (names or mmseg_ext.list_models()) and DEFAULT in offered
    assert len(app["EXAMPLES"]) == 3
