"""The benchmark of class maps: both sides compute the same."""

import pytest
import torch
from mmseg.models import EncoderDecoder

from benchmarks.class_maps import Case, step
from mmseg_ext.segmentors import StripEncoderDecoder

KINDS = (EncoderDecoder, StripEncoderDecoder)
VIEWS = Case(20, (64, 96), (101, 150), views=4)
WINDOWS = Case(19, (96, 160), window=(64, 48))


@pytest.mark.parametrize("case", [VIEWS, WINDOWS], ids=["views", "windows"])
def test_both_sides_give_the_same_labels(case):
    stock, ours = (step(case, kind)() for kind in KINDS)
    assert stock.shape == ours.shape == (case.original or case.size)
    assert (stock == ours).float().mean() > 0.999
    assert len(stock.unique()) == case.classes


def test_both_sides_give_the_same_loss():
    case = Case(20, (64, 96), batch=2)
    stock, ours = (step(case, kind)() for kind in KINDS)
    torch.testing.assert_close(ours, stock, rtol=1e-6, atol=0)
