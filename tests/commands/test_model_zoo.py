"""The model zoo's page against the configs, and its counts against the papers' figures."""

import re

import pytest

from mmseg_ext.commands.model_zoo import HEADINGS, PUBLISHED, TRAINED, count, main
from tests.configs import CONFIGS

EXPERIMENTS = {path.stem: path for path in CONFIGS.glob("*.py")}


def documented() -> dict[str, list[str]]:
    lines = (CONFIGS.parent / "docs" / "model_zoo.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "`" in line]
    return {row[0].strip("`"): row for row in rows if len(row) == len(HEADINGS)}


def test_every_config_has_a_row_with_its_published_result():
    rows = documented()
    assert sorted(rows) == sorted(EXPERIMENTS)
    published, source, here = (HEADINGS.index(h) for h in ("published mIoU", "source", "here"))
    for name, row in rows.items():
        assert (row[published], row[source]) == PUBLISHED.get(name, ("none", ""))
        assert row[here] == TRAINED.get(name, "not trained")


@pytest.mark.parametrize(
    "name",
    [
        "ea_r18_shapes",
        "fcn_lambda_r50_cityscapes_80k",
        "fpn_rmt_tiny_ade20k_80k",
        "upernet_eamlp_14_ade20k_160k",
    ],
)
def test_counts_of_the_page(name):
    cells = count(EXPERIMENTS[name]).cells()
    assert documented()[name][:5] == cells[:5]


def test_counts_of_the_papers():
    """RMT-T with FPN at 512x512: 17.0 M and 33.7 G in the paper, modules alone."""
    row = count(EXPERIMENTS["fpn_rmt_tiny_ade20k_80k"])
    assert row.parameters / 1e6 == pytest.approx(17.0, abs=0.05)
    assert row.module_multiply_adds / 1e9 == pytest.approx(33.7, rel=0.005)
    assert row.all_multiply_adds > row.module_multiply_adds


def test_command_measures_and_names_what_is_missing(capsys):
    assert main([str(EXPERIMENTS["ea_r18_shapes"]), "--time", "--rounds", "1"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    milliseconds = re.split(r" *\| *", line)[HEADINGS.index("ms") + 1]
    assert float(milliseconds.replace(",", "")) > 0
    placed = ["--batch", "2", "--dtype", "bfloat16", "--channels-last"]
    assert main([str(EXPERIMENTS["ea_r18_shapes"]), "--time", "--rounds", "1", *placed]) == 0
    assert "; bfloat16, channels_last, 2 a forward\n" in capsys.readouterr().out
    assert main([str(EXPERIMENTS["ea_r18_shapes"]), "--device", "cuda:99"]) == 1
    assert "error: device 'cuda:99' cannot be used: " in capsys.readouterr().err
    assert main(["configs/none.py"]) == 1
    assert "there is no config 'configs/none.py'" in capsys.readouterr().err
