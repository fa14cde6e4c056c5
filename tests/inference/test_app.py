"""The functions behind the page of demo/app.py; Gradio is replaced."""

import runpy
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from PIL import Image

from mmseg_ext.inference.models import DEFAULT
from tests.configs import CONFIGS

DEMO = CONFIGS.parent / "demo"


def test_a_photo_is_segmented_and_a_click_shows_attention(monkeypatch):
    gradio = MagicMock(Error=type("Error", (Exception,), {}))
    monkeypatch.setitem(sys.modules, "gradio", gradio)
    app, photo = runpy.run_path(str(DEMO / "app.py")), str(DEMO / "street.jpg")
    overlay, heat = app["segment"](photo, DEFAULT, "")
    assert heat is None and len(np.unique(np.asarray(overlay).reshape(-1, 3), axis=0)) > 100
    assert overlay.width == Image.open(photo).width
    clicks = [SimpleNamespace(index=index) for index in ((10, 10), (400, 300))]  # x, y
    pictures = [app["attend"](photo, DEFAULT, "", click) for click in clicks]
    assert pictures[0].dtype == np.uint8 and pictures[0].ndim == 3
    assert (pictures[0] != pictures[1]).any() and all(p.std() > 1 for p in pictures)
    assert app["segment"](None, DEFAULT, "") == (None, None)
    with pytest.raises(gradio.Error, match=r"no_such\.jpg"):
        app["segment"]("no_such.jpg", DEFAULT, "")
