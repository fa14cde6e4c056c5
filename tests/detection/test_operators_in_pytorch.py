"""nms and roi_align against loops that follow the definitions, gradients against differences."""

import importlib
import itertools
import math

import pytest
import torch
from torch.nn.functional import grid_sample

from mmseg_ext.detection.operators_in_pytorch import nms

if getattr(importlib.import_module("mmcv._ext"), "__file__", None) is not None:
    pytest.skip("mmcv has compiled operators", allow_module_level=True)

from mmcv.ops import box_iou_rotated, roi_align

from tests.messages import raises_message


def overlap(a, b, offset):
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]) + offset)
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]) + offset)
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def greedy(boxes, scores, threshold, offset):
    """The definition: the best box that is left stays, and what overlaps it goes."""
    left = sorted(range(len(boxes)), key=lambda i: -scores[i])
    kept = []
    while left:
        best, *left = left
        kept.append(best)
        left = [i for i in left if overlap(boxes[best], boxes[i], offset) <= threshold]
    return kept


def random_boxes(count, side, smallest=1.0):
    corner, size = torch.rand(count, 2) * side, torch.rand(count, 2) * side / 3 + smallest
    return torch.cat((corner, corner + size), 1)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("count", [0, 256, 700], ids=["none", "a block", "blocks"])
def test_nms_keeps_what_the_greedy_rule_keeps(count, offset):
    boxes, scores = random_boxes(count, 60).double(), torch.rand(count)
    kept = nms(boxes, scores, 0.4, offset)
    assert kept.tolist() == greedy(boxes.tolist(), scores.tolist(), 0.4, offset)


def test_nms_keeps_boxes_that_overlap_by_the_threshold_exactly():
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 2]])
    assert len(nms(boxes, torch.tensor([0.9, 0.8]), 0.5)) == 2
    assert len(nms(boxes, torch.tensor([0.9, 0.8]), 0.4999)) == 1


def pooled_by_definition(maps, rois, size, scale, ratio, aligned):
    """The mean of each bin's points; beyond one cell outside the map a point is zero."""
    last = torch.tensor(maps.shape[:1:-1]) - 1  # of x and of y
    output = maps.new_zeros(len(rois), maps.shape[1], *size)
    for n, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (side * scale - (0.5 if aligned else 0.0) for side in box)
        width, height = x2 - x1, y2 - y1
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        pitch = height / size[0], width / size[1]
        for row, column in itertools.product(*map(range, size)):
            down, right = (ratio or math.ceil(side) for side in pitch)
            x = x1 + (column + (torch.arange(right, dtype=maps.dtype) + 0.5) / right) * pitch[1]
            y = y1 + (row + (torch.arange(down, dtype=maps.dtype) + 0.5) / down) * pitch[0]
            points = torch.cartesian_prod(y, x).flip(-1)  # (N, 2)
            inside = ((points >= -1) & (points <= last + 1)).all(1)
            values = grid_sample(
                maps[int(image)][None],
                (2 * points / last - 1)[None, None],
                padding_mode="border",
                align_corners=True,
            )
            output[n, :, row, column] = (values[0, :, 0] * inside).mean(1)
    return output


def align(maps, rois, size=(3, 2), scale=0.5, ratio=0, aligned=True, pool_mode="avg"):
    return roi_align(maps, rois, size, scale, ratio, pool_mode, aligned)


def random_rois(count):
    """Of two images, some of them partly or wholly outside a map of 9 x 13 at scale 0.5."""
    image = torch.arange(count)[:, None] % 2
    return torch.cat((image, random_boxes(count, 26) - 4), 1).double()


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "not aligned"])
@pytest.mark.parametrize("ratio", [0, 2], ids=["adaptive", "two points"])
def test_roi_align_is_its_definition(ratio, aligned):
    maps, rois = torch.randn(2, 2, 9, 13, dtype=torch.float64), random_rois(24)
    got = align(maps, rois, ratio=ratio, aligned=aligned)
    expected = pooled_by_definition(maps, rois, (3, 2), 0.5, ratio, aligned)
    assert expected.abs().min() == 0 < expected.abs().max()  # some bins are outside
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "not aligned"])
def test_the_gradient_is_that_of_the_forward(aligned):
    maps = torch.randn(2, 2, 9, 13, dtype=torch.float64, requires_grad=True)
    rois = random_rois(6)
    assert torch.autograd.gradcheck(lambda m: align(m, rois, aligned=aligned), maps)


@pytest.mark.parametrize("maps_in", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rois_in", [torch.float16, torch.float32])
def test_dtypes_may_be_half_and_mixed(maps_in, rois_in):
    """As under autocast: both are rounded on their way in and sums are taken in float32."""
    maps, rois = torch.randn(2, 2, 9, 13).to(maps_in), random_rois(12).to(rois_in)
    leaf = maps.clone().requires_grad_()
    got = align(leaf, rois)
    got.sum().backward()
    assert got.dtype == leaf.grad.dtype == maps_in and leaf.grad.any()
    expected = align(maps.float(), rois.float()).to(maps_in)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_points_up_to_one_cell_outside_have_the_value_of_the_border():
    """The points of the boxes, in the center, are (-1, -1) and (7, 5), or a little farther."""
    maps = torch.rand(1, 1, 5, 7) + 1
    rois = torch.tensor([[0.0, -2, -2, 0, 0], [0, 6, 4, 8, 6]])
    one = dict(size=(1, 1), scale=1.0, ratio=1, aligned=False)
    assert align(maps, rois, **one).flatten().tolist() == maps[0, 0, [0, 4], [0, 6]].tolist()
    rois[0, 1:] -= 0.01
    rois[1, 1:] += 0.01
    assert not align(maps, rois, **one).any()


def test_empty_boxes_give_zeros_and_inverted_ones_an_error():
    maps = torch.randn(1, 1, 5, 5, requires_grad=True)
    pooled = align(maps, torch.tensor([[0.0, 4, 4, 4, 4]]))
    pooled.sum().backward()
    assert not pooled.any() and not maps.grad.any()
    assert align(maps, torch.zeros(0, 5)).shape == (0, 1, 3, 2)
    with raises_message(ValueError, "x2 < x1", where="rois: ", todo=True):
        align(maps, torch.tensor([[0.0, 4, 4, 2, 4]]))
    with pytest.raises(NotImplementedError, match="pool_mode='max'"):
        align(maps, torch.tensor([[0.0, 4, 4, 6, 6]]), pool_mode="max")


def test_another_operator_is_an_error_with_its_name():
    with pytest.raises(NotImplementedError, match=r"'box_iou_rotated' .*WITH_OPS"):
        box_iou_rotated(torch.rand(3, 5), torch.rand(3, 5))
