"""The benchmark of Manhattan attention: what it measures, and what it writes."""

import json

import pytest
import torch

from benchmarks.rmt import compare_backbones, compare_layers, main
from mmseg_ext.cost.measure import peak_memory
from mmseg_ext.layers import ManhattanAttention


def test_full_attention_needs_memory_for_chunks_alone():
    """48x64 positions, 8 heads: plain holds several maps of 302 MB, ours one chunk of 25 MB."""
    row = compare_layers((48, 64), rounds=0)
    assert row["plain_mib"] > 2 * 4 * 8 * 3072**2 / 2**20
    assert row["ours_mib"] < 120


def test_training_keeps_no_maps():
    layer = ManhattanAttention(64, 8, decomposed=False)
    x = torch.randn(1, 48, 64, 64, requires_grad=True)

    def step():
        layer(x).sum().backward()

    step()
    assert peak_memory(step) < 120 * 2**20


@pytest.mark.parametrize("train", [False, True])
def test_row(train):
    row = compare_backbones("tiny", (64, 64), 1, train, rounds=1)
    assert row["ours_seconds"] > 0 and row["plain_seconds"] > 0
    assert row["speedup"] == pytest.approx(row["plain_seconds"] / row["ours_seconds"])


def test_command(tmp_path, capsys):
    path = tmp_path / "new" / "numbers.json"
    assert main(["--size", "64x64", "--rounds", "0", "--json", str(path)]) == 0
    assert "| tiny, inference, 1x3x64x64 |" in capsys.readouterr().out
    (row,) = json.loads(path.read_text()).values()
    assert {"ours_mib", "plain_mib", "memory_ratio"} == set(row)


@pytest.mark.parametrize("output", ["--json", "--plot"])
def test_command_refuses_in_one_line_before_measuring(output, tmp_path, capsys):
    small = ["--size", "32x32", "--rounds", "0", output]
    assert main([*small, str(tmp_path / "a"), "--device", "cuda:99"]) == 1
    assert "device 'cuda:99' cannot be used" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main([*small, str(tmp_path / "file" / "a")]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and not captured.out
