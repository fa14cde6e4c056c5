"""The functions behind the page of demo/app.py, with a stand-in for Gradio."""

import runpy
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from PIL import Image

from mmseg_ext.inference.models import DEFAULT
from tests.configs import CONFIGS, EXPERIMENTS

PHOTO = CONFIGS.parent / "demo/street.jpg"


@pytest.fixture
def app(monkeypatch) -> dict:
    monkeypatch.setitem(sys.modules, "gradio", MagicMock(Error=RuntimeError))
    return runpy.run_path(str(CONFIGS.parent / "demo/app.py"))


@pytest.mark.parametrize("config", [DEFAULT, str(EXPERIMENTS["fpn_lambda_camvid_800"])])
def test_a_photo_is_segmented_and_a_click_shows_attention(app, config, tmp_path):
    photo = str(tmp_path / "photo.png")
    with Image.open(PHOTO) as image:
        image.resize((100, 60)).save(photo)
    overlay, cleared = app["segment"](photo, config, "")
    assert overlay.width >= 100 and overlay.height > 60 and cleared is None
    assert app["segment"](None, config, "") == (None, None)
    heats = [
        app["attend"](photo, config, "", SimpleNamespace(index=place))
        for place in ((5, 5), (99, 59))  # x, y
    ]
    assert all(heat.shape[2] == 3 and heat.dtype == np.uint8 for heat in heats)
    assert np.abs(heats[0].astype(int) - heats[1]).max() > 50
    with pytest.raises(RuntimeError, match="there is no model 'no'"):
        app["segment"](photo, "no", "")
