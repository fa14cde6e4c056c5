"""Training with `deterministic=True`."""

import os

import torch

from mmseg_ext.segmentors import strip_losses
from tests.engine.runs import train_here, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs


def test_two_trainings_are_equal_and_use_the_strip_losses(tmp_path, monkeypatch):
    calls = []
    forward = strip_losses.StripCrossEntropy.apply
    spy = staticmethod(lambda *arguments: (calls.append(1), forward(*arguments))[1])
    monkeypatch.setattr(strip_losses.StripCrossEntropy, "apply", spy)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    config = write_config(tmp_path, RANDOM + UNVALIDATED)
    try:
        for name in ("one", "two"):
            options = ("randomness.deterministic=True", "train_cfg.max_iters=4")
            train_here(config, tmp_path / name, *options)
            assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_runs(tmp_path / "one", tmp_path / "two", 4)
    assert len(calls) == 2 * 4
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # for matrix products on a GPU
