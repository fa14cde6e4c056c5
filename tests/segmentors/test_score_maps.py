"""R L C^T against the steps of mmsegmentation, one after the other, in float64."""

import itertools
from functools import partial

import pytest
import torch
from mmseg.models import utils

from mmseg_ext.segmentors.score_maps import (
    AxisSteps,
    ScoreMap,
    merged_strips,
    resize_map,
    strip_height,
    view_map,
    window_spans,
)

resize = partial(utils.resize, mode="bilinear", warning=False)
SIZE = (70, 90)
WINDOWS = {  # crop and stride
    "whole": (SIZE, SIZE),
    "windows": ((32, 40), (20, 30)),
}
# Padding of the rows and of the columns, and the axis that is flipped.
VIEWS = {
    "plain": ((0, 0), (0, 0), None),
    "vertical": ((2, 4), (3, 0), 2),
    "horizontal": ((1, 7), (3, 5), 3),
}


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("original", [(33, 41), (101, 120), (30, 1)], ids=str)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("view", VIEWS)
def test_all_steps(align_corners, original, windows, view, monkeypatch):
    """Windows are resized, added and divided by their count; the sum is cut, flipped, resized."""
    monkeypatch.setattr("mmseg_ext.segmentors.score_maps.STRIP_BYTES", 10_000)  # several strips
    crop, stride = WINDOWS[windows]
    (top, bottom), (left, right), flip = VIEWS[view]
    spans = [window_spans(*axis) for axis in zip(SIZE, crop, stride, strict=True)]
    if windows == "windows":  # the last one is shifted
        assert spans == [((0, 32), (20, 52), (38, 70)), ((0, 40), (30, 70), (50, 90))]
    vertical = AxisSteps(SIZE[0], (top, bottom), flip == 2, original[0])
    horizontal = AxisSteps(SIZE[1], (left, right), flip == 3, original[1])
    total = torch.zeros(1, 3, *SIZE, dtype=torch.float64)
    count = torch.zeros(SIZE, dtype=torch.float64)
    scores = ScoreMap()
    for rows, columns in itertools.product(*spans):
        logits = torch.randn(1, 3, 5, 6, dtype=torch.float64)
        window = resize(logits, size=crop, align_corners=align_corners)
        total[:, :, slice(*rows), slice(*columns)] += window
        count[slice(*rows), slice(*columns)] += 1
        scores.add(
            logits[0],
            view_map(5, rows, spans[0], vertical, align_corners, like=logits),
            view_map(6, columns, spans[1], horizontal, align_corners, like=logits),
        )
    theirs = (total / count)[:, :, top : SIZE[0] - bottom, left : SIZE[1] - right]
    theirs = theirs.flip(flip) if flip else theirs
    theirs = resize(theirs, size=original, align_corners=align_corners)[0]
    ours = torch.cat([strip.clone() for _, strip in merged_strips([scores], "logits")])
    torch.testing.assert_close(ours.permute(2, 0, 1), theirs, rtol=0, atol=1e-12)


def test_maps_are_built_once_for_each_dtype_and_device():
    """Also in inference mode, whose tensors autograd would refuse later."""
    like = torch.zeros(1)
    with torch.inference_mode():
        first = resize_map(7, 23, False, like=like)
    assert resize_map(7, 23, False, like=like.bfloat16()) is first  # float32 for both
    assert not first.matrix.is_inference()
    assert resize_map(7, 23, False, like=like.double()).matrix.dtype == torch.float64
    assert resize_map(7, 23, False, like=like.to("meta")).matrix.device.type == "meta"
    assert resize_map(7, 23, True, like=like) is not first


def test_strips_fill_their_budget():
    """8 MiB on a CPU, 64 MiB on other devices, and at least one row."""
    for device, rows in (("cpu", 20), ("meta", 167)):
        like = torch.empty(0, device=device)
        assert strip_height(1000, 100, like) == rows
        assert strip_height(1000, 100, like.double()) == rows // 2
    assert strip_height(10**9, 100, like) == 1
