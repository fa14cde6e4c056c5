"""Random settings, invalid ones too: what `EncoderDecoder` raises for, `StripEncoderDecoder` does.

Where `EncoderDecoder` answers, losses, gradients, labels and scores are equal.
"""

import copy
import math
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import ConfigDict
from mmengine.model import BaseModule
from mmengine.registry import init_default_scope
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor
from torch.nn import functional as F

from mmseg_ext.errors import RunError
from tests.segmentors.small import labelled

CLASSES, SIZE = 4, (20, 28)
EACH_CLASS = [0.5, 1.0, 2, 0.0]
PAIRS = [16, (16,), (8, 8, 8), None, (0, 8), ("8", 8), [8, 8], (8.0, 8)]


@MODELS.register_module()
class TwoMaps(BaseModule):
    """A backbone without parameters: the image at a half and at a quarter of its size."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.avg_pool2d(x, factor) for factor in (2, 4))


def with_a_fault(valid: dict, faults: dict, **always):
    """Return a strategy for settings; in half of them one value may be invalid."""
    one = st.sampled_from([{key: value} for key, values in faults.items() for value in values])
    options = st.fixed_dictionaries({}, optional=valid)
    return st.builds(lambda a, b: always | a | b, options, st.just({}) | one)


cross_entropy = with_a_fault(
    {
        "class_weight": st.lists(st.floats(-1, 3), min_size=CLASSES, max_size=CLASSES),
        "reduction": st.sampled_from(["mean", "sum"]),
        "loss_weight": st.sampled_from([0.4, 0, -1]),
        "loss_name": st.sampled_from(["loss_a", "loss_b", "not_added"]),
        "avg_non_ignore": st.booleans(),
    },
    {
        "class_weight": [EACH_CLASS[:3], (*EACH_CLASS, 1), [], [EACH_CLASS], 1.0, ["1"] * CLASSES]
        + ["no_such_file.npy", {"a": 1}, [None] * CLASSES, [math.nan] * CLASSES],
        "reduction": ["none", "average", None],
        "loss_weight": [None, "1", [0.5, 1.0]],
        "loss_name": [None, "decode"],
        "use_sigmoid": [True],
        "use_mask": [True],
    },
    type="CrossEntropyLoss",
)
OTHER_LOSSES = [
    {"type": "DiceLoss", "loss_name": "loss_dice"},
    {"type": "FocalLoss", "class_weight": [1.0] * (CLASSES + 1)},
    {"type": "TverskyLoss", "class_weight": [1.0] * (CLASSES - 1)},
    {"type": "NoSuchLoss"},
]
losses = cross_entropy | st.lists(cross_entropy | st.sampled_from(OTHER_LOSSES), max_size=3)
samplers = with_a_fault(
    {
        "thresh": st.sampled_from([None, 0.7, 0.2, 0.05, 0, 1.5, -1.0]),
        "min_kept": st.sampled_from([2, 50, 10**9]),
    },
    {"thresh": ["0.7", [0.7], True], "min_kept": [1, 300.0, "3", None, -5]},
    type="OHEMPixelSampler",
)
heads = with_a_fault(
    {
        "loss_decode": losses,
        "sampler": samplers,
        "ignore_index": st.sampled_from([255, 255, 0, 2]),
        "align_corners": st.booleans(),
        "in_index": st.sampled_from([0, 1, -1]),
    },
    {
        "loss_decode": [None, [], {}],
        "sampler": [{}, "OHEMPixelSampler", {"type": "OHEM"}],
        "num_classes": [1, 2, 3, 5, 0, None],
        "out_channels": [1, 2],
        "ignore_index": [-100, -1, None, 255.0, "255", [255], True, 4],
        "align_corners": [None, 1, "yes"],
        "in_index": [2, [0], [0, 1], None],
        "in_channels": [4, [3, 3]],
        "input_transform": ["resize_concat", "multiple_select", "other"],
    },
)
one_channel = st.sampled_from([{}, {}, {"num_classes": 2, "out_channels": 1, "threshold": 0.6}])
whole = with_a_fault({}, {"mode": ["crop", None, True, ""]}, mode="whole")
slide = with_a_fault(
    {
        "crop_size": st.tuples(st.sampled_from([20, 40]), st.sampled_from([20, 40])),
        "stride": st.tuples(st.sampled_from([8, 12]), st.sampled_from([8, 12, 20])),
    },
    {"crop_size": PAIRS, "stride": PAIRS},
    mode="slide",
    crop_size=(12, 20),
    stride=(8, 20),
)
test_settings = st.none() | st.just({}) | whole | slide | slide
label_maps = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([None, None, None, CLASSES, 7, -1]),  # a label of one pixel
    st.integers(0, 9),
)


def build(kind: str, head: dict, auxiliary: dict | None, test_cfg: dict | None):
    """Return a segmentor in double precision, with the same random weights for every `kind`."""
    init_default_scope("mmseg")
    base = {"type": "FCNHead", "in_channels": 3, "channels": 3, "num_classes": CLASSES}
    base |= {"num_convs": 0, "kernel_size": 1, "concat_input": False, "dropout_ratio": 0}
    parts = {"backbone": {"type": "TwoMaps"}, "decode_head": base | head, "test_cfg": test_cfg}
    if auxiliary is not None:
        parts["auxiliary_head"] = base | auxiliary
    model = MODELS.build(ConfigDict(type=kind, **parts)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 3, generator=generator)
    return model


def images() -> Tensor:
    return torch.randn(2, 3, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def trained(kind: str, head: dict, auxiliary: dict | None, samples: list) -> dict[str, Tensor]:
    """Return the losses of a step and the gradients."""
    model = build(kind, head, auxiliary, {"mode": "whole"})
    found = model.loss(images(), samples)
    model.parse_losses(found)[0].backward()
    return found | {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def predicted(kind: str, head: dict, test_cfg: dict | None) -> dict[str, Tensor]:
    """Return the labels and scores of images that were padded, and have another size."""
    if test_cfg is not None:
        test_cfg |= {"keep_logits": True}
    model = build(kind, head, None, test_cfg)
    meta = dict(ori_shape=(27, 31), img_shape=SIZE, pad_shape=SIZE, padding_size=[0, 3, 0, 2])
    results = model.predict(images(), [SegDataSample(metainfo=meta) for _ in range(2)])
    fields = ("pred_sem_seg", "seg_logits")
    return {f"{name} {i}": s.get(name).data for i, s in enumerate(results) for name in fields}


def outcome(run: Callable, *arguments) -> dict[str, Tensor] | Exception:
    try:
        return run(*copy.deepcopy(arguments))
    except Exception as error:  # of any type: the settings are wrong in many ways
        return error


def compare(run: Callable, *arguments) -> None:
    theirs, ours = (outcome(run, f"{kind}EncoderDecoder", *arguments) for kind in ("", "Strip"))
    if isinstance(theirs, Exception):
        # Class weights with avg_non_ignore: docs/class_maps.md
        documented = "too many indices for tensor of dimension 1" in str(theirs)
        assert isinstance(ours, Exception) or documented, theirs
        return
    if isinstance(ours, Exception):
        raise ours
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        # The accuracy is a count in float32.
        tolerance = dict(rtol=1e-6, atol=0) if "acc" in name else dict(rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(ours[name], value, equal_nan=True, **tolerance)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(heads, one_channel, st.none() | heads, label_maps)
def test_training(head, binary, auxiliary, label_map):
    ignored, label, seed = label_map
    torch.manual_seed(seed)
    samples = labelled(SIZE, ignored, 2 if binary else CLASSES)
    if label is not None:
        samples[0].gt_sem_seg.data[0, -1, -1] = label
    compare(trained, head | binary, auxiliary, samples)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(heads, one_channel, test_settings)
def test_predictions(head, binary, test_cfg):
    compare(predicted, head | binary, test_cfg)


@pytest.mark.parametrize("weights", [[], [1.0] * 3, [1.0] * 5, [1.0] * 11, 2.0])
def test_class_weights_of_another_number_of_classes_are_named(weights):
    head = {"loss_decode": {"type": "CrossEntropyLoss", "class_weight": weights}}
    number = torch.tensor(weights).numel()
    for run in ({}, head), (head, {}):
        with pytest.raises(ValueError, match=f"class_weight.* {number}.* {CLASSES} classes"):
            trained("StripEncoderDecoder", *run, labelled(SIZE, classes=CLASSES))


def test_labels_that_cannot_be_read_do_not_hide_the_error_of_the_loss(monkeypatch):
    """As on a GPU after a failed kernel."""
    samples = labelled(SIZE, classes=CLASSES)
    samples[0].gt_sem_seg.data[0, -1, -1] = 9
    with pytest.raises(
        RunError, match=rf"num_classes={CLASSES}: .*\[9\].*check_dataset"
    ):  # not on 255
        trained("StripEncoderDecoder", {}, {}, samples)
    monkeypatch.setattr(Tensor, "unique", Mock(side_effect=RuntimeError("unreadable")))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        trained("StripEncoderDecoder", {}, {}, samples)
