"""R L C^T against the steps of mmsegmentation, one after the other, in float64."""

import itertools
from functools import partial

import pytest
import torch
from mmseg.models import utils

from mmseg_ext.segmentors.resize_maps import AxisSteps, resize_map, view_map, window_spans
from mmseg_ext.segmentors.score_maps import ScoreMap, merged_strips

resize = partial(utils.resize, mode="bilinear", warning=False)
ORIGINALS = {"enlarged": (61, 47), "reduced": (17, 23), "one pixel wide": (30, 1)}


def scores(view: ScoreMap) -> torch.Tensor:
    """All strips, (C, H, W)."""
    strips = [strip.clone() for _, strip in merged_strips([view], "logits")]
    return torch.cat(strips).permute(2, 0, 1)


@pytest.fixture  # several to each map below
def short_strips(monkeypatch):
    monkeypatch.setattr("mmseg_ext.segmentors.score_maps.STRIP_BYTES", 10_000)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("original", ORIGINALS.values(), ids=ORIGINALS)
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (3, 5, 1, 7)], ids=["unpadded", "padded"])
@pytest.mark.parametrize("flip", [None, 2, 3], ids=["unflipped", "vertical", "horizontal"])
def test_a_whole_view(short_strips, align_corners, original, padding, flip):
    """Logits to the input's size, padding off, flipped back, to the image's size."""
    size, low = (41, 57), (6, 8)
    left, right, top, bottom = padding
    logits = torch.randn(1, 3, *low, dtype=torch.float64)
    theirs = resize(logits, size=size, align_corners=align_corners)
    theirs = theirs[:, :, top : size[0] - bottom, left : size[1] - right]
    if flip is not None:
        theirs = theirs.flip(flip)
    theirs = resize(theirs, size=original, align_corners=align_corners)[0]
    view = ScoreMap()
    steps = (
        AxisSteps(size[0], (top, bottom), flip == 2, original[0]),
        AxisSteps(size[1], (left, right), flip == 3, original[1]),
    )
    maps = (
        view_map(n, (0, axis.size), ((0, axis.size),), axis, align_corners, like=logits)
        for n, axis in zip(low, steps, strict=True)
    )
    view.add(logits[0], *maps)
    torch.testing.assert_close(scores(view), theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("original", [(70, 90), (33, 41), (101, 120)], ids=str)
def test_windows_of_which_the_last_is_shifted(short_strips, align_corners, original):
    """Windows are resized, added and divided by how many there are at a pixel."""
    size, crop, stride = (70, 90), (32, 40), (20, 30)
    spans = [window_spans(*axis) for axis in zip(size, crop, stride, strict=True)]
    assert spans == [((0, 32), (20, 52), (38, 70)), ((0, 40), (30, 70), (50, 90))]
    total = torch.zeros(1, 3, *size, dtype=torch.float64)
    count = torch.zeros(size, dtype=torch.float64)
    view = ScoreMap()
    for rows, columns in itertools.product(*spans):
        logits = torch.randn(1, 3, 5, 6, dtype=torch.float64)
        window = resize(logits, size=crop, align_corners=align_corners)
        total[:, :, slice(*rows), slice(*columns)] += window
        count[slice(*rows), slice(*columns)] += 1
        vertical = AxisSteps(size[0], (2, 4), True, original[0])
        horizontal = AxisSteps(size[1], (3, 0), False, original[1])
        view.add(
            logits[0],
            view_map(5, rows, spans[0], vertical, align_corners, like=logits),
            view_map(6, columns, spans[1], horizontal, align_corners, like=logits),
        )
    theirs = (total / count)[:, :, 2 : size[0] - 4, 3:].flip(2)
    theirs = resize(theirs, size=original, align_corners=align_corners)[0]
    torch.testing.assert_close(scores(view), theirs, rtol=0, atol=1e-12)


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
