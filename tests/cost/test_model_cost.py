"""Costs of a config: the papers' counts, and the command."""

import os

import pytest
import torch

from mmseg_ext.commands.model_cost import main
from mmseg_ext.cost.model_cost import count_config, machine
from tests.configs import CONFIGS


def test_counts_of_the_papers():
    """RMT-T with FPN at 512x512: 17.0 M and 33.7 G in the paper, which counts modules only."""
    cost = count_config(CONFIGS / "fpn_rmt_tiny_ade20k_80k.py")
    assert cost.parameters / 1e6 == pytest.approx(17.0, abs=0.05)
    assert cost.module_multiply_adds / 1e9 == pytest.approx(33.7, rel=0.005)
    assert cost.all_multiply_adds > cost.module_multiply_adds


def test_command_prints_one_row_for_each_config(capsys):
    assert main([str(CONFIGS / "ea_r18_shapes.py"), str(CONFIGS / "fcn_r18_shapes.py")]) == 0
    *_, ea, fcn = capsys.readouterr().out.splitlines()
    assert ea == "| `ea_r18_shapes` | 96x96 | 0.97 | 0.14 | 0.15 |"
    assert fcn.startswith("| `fcn_r18_shapes` | 96x96 | 1.00 |")
    assert main(["configs/none.py"]) == 1
    assert "configs/none.py" in capsys.readouterr().err


def test_the_machine_is_the_gpu_or_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    assert machine("cuda:0") == f"H100, torch {torch.__version__}"
    assert machine().startswith(f"{os.cpu_count()}-core ")
