"""The lambda benchmark: its contenders compute one function, its tables hold what was measured."""

import json

import pytest
import torch

from benchmarks import lambda_cost
from benchmarks import lambda_layer as lambda_command
from mmseg_ext.backbones.lambda_resnet import LambdaResNet
from mmseg_ext.layers import LambdaLayer
from tests.models import randomise


@pytest.mark.parametrize("scope", ["local", "global"])
@torch.no_grad()
def test_contenders_compute_the_same(scope):
    if scope == "local":
        layer = randomise(LambdaLayer(16, receptive_field=7, position_bias=True)).eval()
        contenders = lambda_cost.local_contenders(layer)
    else:
        layer = LambdaLayer(16, receptive_field=None, resolution=(8, 9)).eval()
        contenders = lambda_cost.global_contenders(layer)
    x = torch.randn(2, 16, 8, 9)
    expected = layer(x)
    assert len(contenders) == {"local": 7, "global": 2}[scope]
    for module in contenders.values():
        assert torch.allclose(module(x), expected, atol=2e-5 * expected.abs().max())


@pytest.mark.parametrize("training", [False, True])
def test_timings_name_every_way_and_draw(training, tmp_path):
    contenders = lambda_cost.local_contenders(LambdaLayer(16, receptive_field=5))
    timings = lambda_cost.measure_layer("case", contenders, (1, 16, 8, 8), training, rounds=2)
    assert [t.way for t in timings] == list(contenders)
    assert timings[0].over_ours == 1.0 and all(t.milliseconds > 0 for t in timings)
    rows = lambda_cost.timing_rows(timings)
    assert all(len(row) == len(lambda_cost.TIMING_HEADINGS) for row in rows)
    lambda_cost.draw_timings(timings, tmp_path / "ways.png")
    assert (tmp_path / "ways.png").read_bytes().startswith(b"\x89PNG")


def test_choice_has_a_row_per_size(monkeypatch):
    monkeypatch.setattr(lambda_cost, "CHOICES", ((16, 8, 5), (32, 4, 9)))
    rows = lambda_cost.choice_rows(rounds=1)
    assert [row[:2] for row in rows] == [["16 x 8", "5"], ["32 x 4", "9"]]
    assert all(len(row) == len(lambda_cost.CHOICE_HEADINGS) for row in rows)


def test_count_rows_put_the_papers_column_beside_ours(monkeypatch):
    monkeypatch.setattr(lambda_cost, "KEY_HEAD_DEPTH_GRID", lambda_cost.KEY_HEAD_DEPTH_GRID[3:4])
    monkeypatch.setattr(lambda_cost, "PLACEMENTS", {"CCLL": lambda_cost.PLACEMENTS["CCLL"]})
    assert lambda_cost.count_rows() == [
        ["k=16, h=4, u=1", "15.00", "15.0", "6.58", ""],
        ["CCLL", "15.56", "15.4", "4.44", "differs"],
    ]


def test_rows_that_differ_from_the_paper_say_so():
    for cost in (*lambda_cost.KEY_HEAD_DEPTH_GRID, *lambda_cost.PLACEMENTS.values()):
        with torch.device("meta"):
            model = LambdaResNet(num_classes=1000, **cost.arguments)
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        assert (round(millions, 1) != cost.paper) == bool(cost.remark), cost.arguments


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(lambda_cost, "KEY_HEAD_DEPTH_GRID", lambda_cost.KEY_HEAD_DEPTH_GRID[3:4])
    monkeypatch.setattr(lambda_cost, "PLACEMENTS", {})


def test_command_prints_and_writes_the_counts(tiny, tmp_path, capsys):
    path = tmp_path / "counts.json"
    assert lambda_command.main(["counts", "--json", str(path)]) == 0
    row = ["k=16, h=4, u=1", "15.00", "15.0", "6.58", ""]
    assert json.loads(path.read_text())["counts"] == [row]
    assert "| " + " | ".join(row) + " |" in capsys.readouterr().out


def test_command_without_the_device(capsys):
    device = f"cuda:{torch.cuda.device_count()}"
    assert lambda_command.main(["counts", "--device", device]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: device {device!r} cannot be used: ") and error.count("\n") == 1


def test_training_memory_of_a_step_and_of_the_process():
    memory = lambda_cost.training_memory(64, 1, depth=(1, 1, 1, 1), receptive_field=3)
    assert memory.second > 0
    assert memory.process > memory.first > 0
