"""Pictures: what the curves read and that every panel shows what it was given."""

import numpy as np
import pytest
from PIL import Image

from mmseg_ext.reports.curves import prediction_loss
from mmseg_ext.reports.pictures import draw_panels

PALETTE = [[10, 20, 30], [200, 100, 0]]


def test_prediction_loss_of_a_head_with_three():
    names = ("loss", "decode.pam_cam.loss_ce", "decode.pam.loss_ce", "decode.cam.loss_ce")
    curves = {name: {1: float(i)} for i, name in enumerate(names)}
    assert prediction_loss(curves) == {1: 1.0}
    assert prediction_loss({"loss": curves["loss"]}) == {1: 0.0}


def test_draw_panels_shows_every_label(tmp_path):
    label = np.zeros((40, 60), np.uint8)
    label[:, 30:] = 1
    image = np.full((40, 60, 3), (250, 0, 250), np.uint8)
    path = tmp_path / "panels.png"
    draw_panels({"image": [image] * 2, "truth": [label] * 2}, ["a", "b"], PALETTE, path)
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)

    def area(colour):
        return (np.abs(picture - colour).max(-1) <= 3).mean()

    assert area([250, 0, 250]) == pytest.approx(area([10, 20, 30]) + area([200, 100, 0]), rel=0.05)
    assert area([10, 20, 30]) == pytest.approx(area([200, 100, 0]), rel=0.1)
