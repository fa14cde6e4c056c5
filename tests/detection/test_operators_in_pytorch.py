"""nms and roi_align against loops that follow the definitions, gradients against differences."""

import importlib
import math

import pytest
import torch

from mmseg_ext.detection.operators_in_pytorch import (
    nms,
    roi_align_backward,
    roi_align_forward,
    softnms,
)

BOXES = {"none": 0, "a block": 256, "blocks": 700}


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
@pytest.mark.parametrize("count", BOXES.values(), ids=BOXES)
def test_nms_keeps_what_the_greedy_rule_keeps(count, offset):
    boxes, scores = random_boxes(count, 60).double(), torch.rand(count)
    kept = nms(boxes, scores, 0.4, offset)
    assert kept.tolist() == greedy(boxes.tolist(), scores.tolist(), 0.4, offset)


def test_nms_lets_a_box_stay_whose_rival_falls():
    # The second falls to the first, so that the third, which only the second overlaps, stays.
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 0, 15, 10], [10, 0, 20, 10]])
    assert nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.3).tolist() == [0, 2]


def test_nms_keeps_boxes_that_overlap_by_the_threshold_exactly():
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 2]])
    assert len(nms(boxes, torch.tensor([0.9, 0.8]), 0.5)) == 2
    assert len(nms(boxes, torch.tensor([0.9, 0.8]), 0.4999)) == 1


def lowered(boxes, scores, weight, min_score):
    """The definition: the best box that is left stays and lowers the scores of the others."""
    left = dict(enumerate(scores))
    kept = []
    while left:
        best = max(left, key=left.get)
        kept.append((best, left.pop(best)))
        left = {i: s * weight(overlap(boxes[best], boxes[i], 0)) for i, s in left.items()}
        left = {i: s for i, s in left.items() if s >= min_score}
    return kept


WEIGHTS = {  # mmcv's number of the method, its rule for a threshold of 0.3 and sigma of 0.5
    "greedy": (0, lambda iou: float(iou < 0.3)),
    "linear": (1, lambda iou: 1 - iou if iou >= 0.3 else 1.0),
    "gaussian": (2, lambda iou: math.exp(-(iou**2) / 0.5)),
}


@pytest.mark.parametrize(("method", "weight"), WEIGHTS.values(), ids=WEIGHTS)
def test_soft_nms_lowers_what_the_rule_lowers(method, weight):
    boxes, scores = random_boxes(80, 60).double(), torch.rand(80).double()
    dets = boxes.new_empty(80, 5)
    options = dict(iou_threshold=0.3, sigma=0.5, min_score=0.05, method=method, offset=0)
    kept = softnms(boxes, scores, dets, **options)
    expected = lowered(boxes.tolist(), scores.tolist(), weight, 0.05)
    assert kept.tolist() == [i for i, _ in expected] and 0 < len(kept) < 80
    torch.testing.assert_close(dets[: len(kept), :4], boxes[kept])
    torch.testing.assert_close(dets[: len(kept), 4].tolist(), [s for _, s in expected])


# --- roi_align ----------------------------------------------------------------------------------


def bilinear(plane, y, x):
    """A map (H, W) at a point; the border's value up to one cell outside, then zero."""
    height, width = len(plane), len(plane[0])
    if not (-1 <= y <= height and -1 <= x <= width):
        return 0.0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    ly, lx = y - top, x - left
    upper = plane[top][left] * (1 - lx) + plane[top][right] * lx
    lower = plane[bottom][left] * (1 - lx) + plane[bottom][right] * lx
    return upper * (1 - ly) + lower * ly


def pooled_by_loops(maps, rois, size, scale, ratio, aligned):
    output = torch.zeros(len(rois), maps.shape[1], *size, dtype=maps.dtype)
    for n, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (side * scale - (0.5 if aligned else 0.0) for side in box)
        width, height = x2 - x1, y2 - y1
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        pitch = height / size[0], width / size[1]
        grid = [ratio or math.ceil(side) for side in pitch]
        for channel, plane in enumerate(maps[int(image)].tolist()):
            for row in range(size[0]):
                for column in range(size[1]):
                    values = [
                        bilinear(
                            plane,
                            y1 + (row + (i + 0.5) / grid[0]) * pitch[0],
                            x1 + (column + (j + 0.5) / grid[1]) * pitch[1],
                        )
                        for i in range(grid[0])
                        for j in range(grid[1])
                    ]
                    output[n, channel, row, column] = sum(values) / max(len(values), 1)
    return output


class Align(torch.autograd.Function):
    """As mmcv's: the operators write into tensors that they are given."""

    @staticmethod
    def forward(ctx, maps, rois, options, size):
        output = maps.new_zeros(len(rois), maps.shape[1], *size)
        unused = torch.zeros_like(output)
        roi_align_forward(maps, rois, output, unused, unused, **options)
        ctx.save_for_backward(rois, unused)
        ctx.shape, ctx.options = maps.shape, options
        return output

    @staticmethod
    def backward(ctx, grad):
        rois, unused = ctx.saved_tensors
        grad_input = grad.new_zeros(ctx.shape)
        roi_align_backward(grad, rois, unused, unused, grad_input, **ctx.options)
        return grad_input, None, None, None


def align(maps, rois, size=(3, 2), scale=0.5, ratio=0, aligned=True, pool_mode=1):
    options = dict(aligned_height=size[0], aligned_width=size[1], spatial_scale=scale)
    options |= dict(sampling_ratio=ratio, pool_mode=pool_mode, aligned=aligned)
    return Align.apply(maps, rois, options, size)


def random_rois(count):
    """Of two images, some of them partly or wholly outside a map of 9 x 13 at scale 0.5."""
    image = torch.arange(count)[:, None] % 2
    return torch.cat((image, random_boxes(count, 26) - 4), 1).double()


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "not aligned"])
@pytest.mark.parametrize("ratio", [0, 2], ids=["adaptive", "two points"])
def test_roi_align_is_its_definition(ratio, aligned):
    maps, rois = torch.randn(2, 2, 9, 13, dtype=torch.float64), random_rois(24)
    got = align(maps, rois, ratio=ratio, aligned=aligned)
    expected = pooled_by_loops(maps, rois, (3, 2), 0.5, ratio, aligned)
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


def test_empty_boxes_give_zeros_and_inverted_ones_an_error():
    maps = torch.randn(1, 1, 5, 5, requires_grad=True)
    pooled = align(maps, torch.tensor([[0.0, 4, 4, 4, 4]]))
    pooled.sum().backward()
    assert not pooled.any() and not maps.grad.any()
    assert align(maps, torch.zeros(0, 5)).shape == (0, 1, 3, 2)
    with pytest.raises(ValueError, match="x2 < x1"):
        align(maps, torch.tensor([[0.0, 4, 4, 2, 4]]))
    with pytest.raises(NotImplementedError, match="pool_mode='max'"):
        align(maps, torch.tensor([[0.0, 4, 4, 6, 6]]), pool_mode=0)


# --- as mmcv calls them ---------------------------------------------------------


def test_mmcv_calls_the_stand_ins():
    ops = pytest.importorskip("mmcv.ops")
    boxes, scores, classes = random_boxes(300, 50), torch.rand(300), torch.arange(300) % 3
    kept = ops.batched_nms(boxes, scores, classes, dict(type="nms", iou_threshold=0.5))[1]
    by_class = [
        index[greedy(boxes[index].tolist(), scores[index].tolist(), 0.5, 0)]
        for index in ((classes == i).nonzero()[:, 0] for i in range(3))
    ]
    expected = torch.cat(by_class)
    assert kept.tolist() == expected[scores[expected].argsort(descending=True)].tolist()
    assert len(ops.soft_nms(boxes, scores, method="naive", iou_threshold=0.5)[1]) == len(
        greedy(boxes.tolist(), scores.tolist(), 0.5, 0)
    )
    layer = ops.RoIAlign((3, 2), spatial_scale=0.5)
    maps, rois = torch.randn(2, 4, 9, 13), random_rois(10).float()
    torch.testing.assert_close(layer(maps, rois), align(maps, rois), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(
    getattr(importlib.import_module("mmcv._ext"), "__file__", None) is not None,
    reason="mmcv has compiled operators",
)
def test_another_operator_ends_in_one_sentence_with_its_name():
    from mmcv.ops import box_iou_rotated

    with pytest.raises(NotImplementedError, match=r"'box_iou_rotated' is not compiled .*WITH_OPS"):
        box_iou_rotated(torch.rand(3, 5), torch.rand(3, 5))
