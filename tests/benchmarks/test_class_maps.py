"""The benchmark of class maps: both sides compute the same, and what it measures."""

import pytest
import torch

from benchmarks.class_maps import Case, main, plot, step, table

VIEWS = Case("ea_r101_ade20k_160k", 20, (64, 96), (101, 150), views=4)
WINDOWS = Case("ea_r101_cityscapes_80k", 19, (96, 160), window=((64, 64), (48, 48)))


@pytest.mark.parametrize("case", [VIEWS, WINDOWS], ids=["views", "windows"])
def test_both_sides_give_the_same_labels(case):
    stock, ours = (step(case, kind, False, "cpu")() for kind in ("stock", "strips"))
    assert stock.shape == ours.shape == (case.original or case.size)
    assert (stock == ours).float().mean() > 0.999
    assert len(stock.unique()) == case.classes


def test_both_sides_give_the_same_loss():
    case = Case("ea_r101_ade20k_160k", 20, (64, 96), batch=2)
    stock, ours = (step(case, kind, False, "cpu")() for kind in ("stock", "strips"))
    torch.testing.assert_close(ours, stock, rtol=1e-6, atol=0)


def test_peak_of_post_processing(capsys):
    """A map of 150 classes at 512x683 takes 200 MiB, and mmsegmentation holds two."""
    peaks = {}
    for kind in ("stock", "strips"):
        assert main(["--peak-of", "ADE20K, 512x683, 1 view", kind]) == 0
        peaks[kind] = int(capsys.readouterr().out) / 2**20
    assert peaks["stock"] > 390
    assert peaks["strips"] < 40


def test_a_table_without_times_and_the_picture(tmp_path):
    text = table({"a": {"stock_mib": 200.0, "strips_mib": 20.0}})
    assert "| a |  |  |  | 200 | 20 | 0.10 |  |" in text
    curves = {kind: {512: 1.0, 1024: 4.0} for kind in ("stock", "strips")}
    plot(curves, tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_the_largest_batch_needs_a_gpu(capsys):
    assert main(["--largest-batch"]) == 1
    assert "--largest-batch needs a GPU" in capsys.readouterr().err
