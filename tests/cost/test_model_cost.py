"""What a config's network costs: the papers' figures, and the command that measures."""

import re

import pytest

from mmseg_ext.commands.model_cost import main
from mmseg_ext.cost.model_cost import HEADINGS, count_config
from tests.configs import CONFIGS

DEMO = str(CONFIGS / "ea_r18_shapes.py")


def test_counts_of_the_papers():
    """RMT-T with FPN at 512x512: 17.0 M and 33.7 G in the paper, modules alone."""
    cost = count_config(CONFIGS / "fpn_rmt_tiny_ade20k_80k.py")
    assert cost.parameters / 1e6 == pytest.approx(17.0, abs=0.05)
    assert cost.module_multiply_adds / 1e9 == pytest.approx(33.7, rel=0.005)
    assert cost.all_multiply_adds > cost.module_multiply_adds


def test_command_measures_and_names_what_is_missing(capsys):
    placed = ["--batch", "2", "--dtype", "bfloat16", "--channels-last"]
    assert main([DEMO, "--time", "--rounds", "1", *placed]) == 0
    text = capsys.readouterr().out
    assert "; bfloat16, channels_last, 2 a forward\n" in text
    row = re.split(r" *\| *", text.splitlines()[-1])
    assert float(row[HEADINGS.index("ms") + 1].replace(",", "")) > 0
    assert main([DEMO, "--device", "cuda:99"]) == 1
    assert "error: device 'cuda:99' cannot be used: " in capsys.readouterr().err
    assert main(["configs/none.py"]) == 1
    assert "there is no config 'configs/none.py'" in capsys.readouterr().err
