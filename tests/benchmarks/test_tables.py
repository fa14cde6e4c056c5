"""The benchmarks: what the tables of the docs hold, on small modules, and their command line."""

import json

import pytest
import torch
from torch import nn

from benchmarks import external_attention, lambda_layer
from benchmarks.contest import Entrant, Settings, command, entrants_table, module_contest
from mmseg_ext.backbones.lambda_resnet import LambdaResNet


def test_contest_takes_turns_and_leaves_fused_forms_out_of_training():
    ways = {"first": nn.Conv2d(4, 4, 3), "fused": nn.Identity()}
    entrants = module_contest("case", ways, torch.randn(1, 4, 8, 8), Settings(rounds=3))
    assert [(e.case, e.name) for e in entrants] == [
        ("case, inference", "first"),
        ("case, inference", "fused"),
        ("case, training", "first"),
    ]
    assert entrants[0].over_first == entrants[2].over_first == 1.0
    assert all(e.ms > 0 for e in entrants)


def test_command_prints_and_writes_the_parts_asked_for(tmp_path, capsys):
    def part(settings: Settings):
        return entrants_table([Entrant("case", settings.device, settings.rounds, 1.0, 2.0)])

    def other(settings: Settings):
        raise AssertionError("was not asked for")

    path = tmp_path / "rows.json"
    arguments = ["part", "--rounds", "7", "--json", str(path)]
    assert command("", {"part": part, "other": other}, arguments) == 0
    assert "| case | cpu | 7.0 | 1.00 | 2 |" in capsys.readouterr().out
    assert json.loads(path.read_text())["part"]["rows"] == [["case", "cpu", "7.0", "1.00", "2"]]


def test_command_refuses_in_one_line_before_measuring(capsys):
    assert command("", {"part": None}, ["part", "--device", "cuda:99"]) == 1
    assert "device 'cuda:99' cannot be used" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command("", {"part": None}, ["parts"])
    assert "unknown part 'parts': choose from part" in capsys.readouterr().err


def test_pictures(tmp_path):
    entrants = [Entrant(f"{s} x {s}", "EA", s / 10, 1.0, s) for s in (8, 16, 32)]
    entrants[0] = entrants[0]._replace(mib=0.0)
    external_attention.plot_resolution(entrants, tmp_path / "plot.png")
    lambda_layer.draw(entrants, tmp_path / "ways.png")
    for name in ("plot.png", "ways.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_counts_put_the_papers_column_beside_ours(monkeypatch):
    monkeypatch.setattr(lambda_layer, "KEY_HEAD_DEPTH_GRID", lambda_layer.KEY_HEAD_DEPTH_GRID[3:4])
    monkeypatch.setattr(lambda_layer, "PLACEMENTS", {"CCLL": lambda_layer.PLACEMENTS["CCLL"]})
    assert lambda_layer.counts(Settings()).rows == [
        ["k=16, h=4, u=1", "15.00", "15.0", "6.58", ""],
        ["CCLL", "15.56", "15.4", "4.44", "differs"],
    ]


def test_rows_that_differ_from_the_paper_say_so():
    for cost in (*lambda_layer.KEY_HEAD_DEPTH_GRID, *lambda_layer.PLACEMENTS.values()):
        with torch.device("meta"):
            model = LambdaResNet(num_classes=1000, **cost.arguments)
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        assert (round(millions, 1) != cost.paper) == bool(cost.remark), cost.arguments
