"""Copies for prediction: folded norms, and graphs, which the CPU stands in for by plain calls."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import mmseg_ext
from mmseg_ext.inference.fast_copy import GRAPHS, Graphs, fast_copy, fold_norms
from tests.configs import CONFIGS
from tests.models import randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")


def norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("name", mmseg_ext.list_models(pretrained=True))
def test_folded_norms_of_the_shipped_models(name):
    """They change logits by less than float32 rounds them, and labels nowhere in this image."""
    model = mmseg_ext.get_model(name, pretrained=True).eval()
    x = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = copy.deepcopy(model).double()
        expected = exact.network_logits(x.double())
        for folded, bound in ((exact, 1e-13), (copy.deepcopy(model), 5e-6)):
            inputs = x.to(expected.dtype if folded is exact else x.dtype)
            count = fold_norms(folded, lambda f=folded, i=inputs: f.network_logits(i))
            assert count > 30 and norms(model) - norms(folded) == count
            error = (folded.network_logits(inputs) - expected).abs().max()
            assert error <= bound * expected.abs().max()


class Chain(nn.Module):
    """Convolutions and norms of which only the first pair can be folded."""

    def __init__(self):
        super().__init__()
        for i in range(6):
            self.add_module(f"conv{i}", nn.Conv2d(4, 4, 1))
            self.add_module(f"norm{i}", nn.BatchNorm2d(4))
        self.norm5.register_forward_hook(lambda *args: None)
        self.norm4.train()

    def forward(self, x):
        x = self.norm0(self.conv0(x))
        x = self.norm1(self.conv1(self.conv1(x)))  # runs twice
        x = self.norm2(self.conv2(x).relu_())  # an activation between
        x = self.norm3(self.conv3(x) + 1)
        x = self.norm4(self.conv4(x))  # not in evaluation
        return self.norm5(self.conv5(x))  # has a hook


def test_only_what_is_exact_is_folded():
    torch.manual_seed(0)
    model = randomise(Chain())
    model.eval().norm4.train()
    x = torch.randn(2, 4, 5, 5)
    expected = copy.deepcopy(model)(x)
    assert fold_norms(model, lambda: model(x)) == 1
    assert isinstance(model.norm0, nn.Identity) and norms(model) == 5
    torch.testing.assert_close(model(x), expected)


def test_a_fast_predictor_leaves_the_model_alone():
    torch.manual_seed(0)
    model = randomise(mmseg_ext.get_model(CONFIG)).eval()
    before = copy.deepcopy(model.state_dict())
    picture = np.random.RandomState(0).randint(0, 256, (40, 56, 3), np.uint8)
    for tta in (False, True):
        plain = mmseg_ext.Predictor(model, tta, scores=True)(picture)
        fast = mmseg_ext.Predictor(model, tta, scores=True, fast=True)
        for _ in range(2):
            found = fast(picture)
            assert np.abs(found.scores - plain.scores).max() < 2e-3  # float16
            assert (found.labels == plain.labels).mean() > 0.999
    assert norms(model) and all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    with pytest.raises(ValueError, match="EncoderDecoder"):
        fast_copy(mmseg_ext.get_model(CONFIG, type="EncoderDecoder"))


def test_sizes_that_repeat_are_captured_at_their_third_use(monkeypatch):
    calls, captured = [], []

    def network(x):
        calls.append(tuple(x.shape))
        return x * 2

    def capture(function, x):
        captured.append(tuple(x.shape))
        own = x.clone()
        return own, lambda: function(own)

    monkeypatch.setattr("mmseg_ext.inference.fast_copy.capture", capture)
    graphs = Graphs(network)
    for use in range(1, 5):
        for side in range(1, GRAPHS + 3):
            x = torch.full((side, side), use)
            assert graphs(x).eq(x * 2).all()
        assert len(captured) == (GRAPHS if use > 2 else 0)
    assert captured == [(side, side) for side in range(1, GRAPHS + 1)]
    assert graphs(torch.ones(1, 1)).item() == 2 and len(captured) == GRAPHS  # another dtype
