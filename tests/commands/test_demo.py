"""The demo: its config reaches its mIoU, and what it prints and writes is what it measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image

from mmseg_ext.commands import demo as demo_module
from mmseg_ext.commands._short_run import Outcome, train_and_test
from mmseg_ext.commands.demo import (
    COMPARED,
    DEMO_CONFIG,
    comparison_table,
    data_root_options,
    demo,
)
from mmseg_ext.reports.curves import Curve
from tests.configs import CONFIGS

ROOT = CONFIGS.parent


@pytest.fixture(autouse=True)
def _at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def few_iterations(tmp_path: Path, iterations: int) -> dict:
    """Options that shorten the whole schedule and the dataset alike."""
    recipe = {"seed": 0, "train": 24, "val": 8, "size": 128}
    loaders = ("train_dataloader", "val_dataloader", "test_dataloader")
    return {
        **data_root_options(str(tmp_path / "shapes")),
        **{f"{loader}.dataset.recipe": recipe for loader in loaders},
        "train_cfg.max_iters": iterations,
        "train_cfg.val_interval": iterations,
        "default_hooks.checkpoint.interval": iterations,
        "default_hooks.logger.interval": 2,
    }


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> tuple[Outcome, dict, Path]:
    tmp_path = tmp_path_factory.mktemp("short")
    options = few_iterations(tmp_path, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return train_and_test(DEMO_CONFIG, tmp_path / "run", options), options, tmp_path


def test_short_run_reports_what_the_log_holds(short):
    outcome, _, _ = short
    assert outcome.iterations == 4 and outcome.checkpoint.is_file()
    assert outcome.curves["loss"].steps == [2, 4]
    # The single-scale test repeats the last validation, on the weights read back from the file.
    assert outcome.miou == pytest.approx(outcome.curves["mIoU"].values[-1] / 100, abs=1e-9)
    assert "Iter(train) [4/4]" in outcome.log.read_text()


def test_same_seed_same_run(short):
    outcome, options, tmp_path = short
    again = train_and_test(DEMO_CONFIG, tmp_path / "again", options)
    assert again.curves["loss"] == outcome.curves["loss"]
    assert (again.miou, again.miou_tta) == (outcome.miou, outcome.miou_tta)


def test_demo_draws_and_fails_below_its_bound(short, tmp_path, monkeypatch, capsys):
    outcome, options, _ = short
    monkeypatch.setattr(demo_module, "train_and_test", lambda *args: outcome)
    assert not demo(tmp_path, options)
    printed = capsys.readouterr().out
    assert f"single scale             {outcome.miou:.3f}" in printed
    assert f"FAILED: mIoU {outcome.miou:.3f} is below 0.70" in printed
    report = (tmp_path / "report.html").read_text()
    assert printed.splitlines()[-2].endswith(str(tmp_path / "report.html"))
    reported = float(report.split('data-miou="')[1].split('"')[0])
    assert reported == pytest.approx(outcome.miou, abs=6e-5)  # mmseg rounds to 0.01 %
    for name in ("curves.png", "predictions.png"):
        assert str(tmp_path / name) in printed
        assert np.asarray(Image.open(tmp_path / name)).std() > 10


def test_compared_configs_differ_in_the_head_alone():
    ours = Config.fromfile(DEMO_CONFIG)
    for config in COMPARED.values():
        theirs = Config.fromfile(config)
        assert {k: v for k, v in theirs.items() if k not in ("model", "norm_cfg")} == {
            k: v for k, v in ours.items() if k not in ("model", "norm_cfg")
        }
        assert {k: v for k, v in theirs.model.items() if k != "decode_head"} == {
            k: v for k, v in ours.model.items() if k != "decode_head"
        }


def test_comparison_table_ranks_by_miou_and_compare_writes_it(tmp_path, monkeypatch, capsys):
    def outcome(config, work_dir, options):
        miou = {"ea": 0.71, "fcn": 0.74, "danet": 0.69}[Path(config).stem.split("_")[0]]
        curves = {"decode.loss_ce": Curve([1], [1.0]), "mIoU": Curve([1], [100 * miou])}
        log = work_dir / "log"
        return Outcome(config, miou, miou + 0.01, 10**6, 5, 60.0, 4.0, curves, log, log)

    reported = {}
    monkeypatch.setattr(demo_module, "train_and_test", outcome)
    monkeypatch.setattr(
        demo_module, "write_report", lambda runs, path, options: reported.update({path: runs})
    )
    demo_module.compare(tmp_path)
    assert reported == {tmp_path / "report.html": [tmp_path / n.lower() for n in COMPARED]}
    table = (tmp_path / "compare.md").read_text()
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        "FCN",
        "EANet",
        "DANet",
    ]
    assert "| FCN | 0.740 | 0.750 | 1.00 M | 5 | 60 |" in table
    assert table in capsys.readouterr().out
    rows = json.loads((tmp_path / "compare.json").read_text())
    assert rows["FCN"]["miou"] == 0.74 and rows["DANet"]["config"] == COMPARED["DANet"]
    assert comparison_table({}).count("\n") == 2


@pytest.mark.slow
def test_demo_config_reaches_its_miou(tmp_path):
    """The whole recipe, on its own dataset.

    The tests at the end score it: validations on the way, which change nothing, are left out.
    """
    options = data_root_options(str(tmp_path / "s")) | {"train_cfg.val_interval": 1300}
    outcome = train_and_test(DEMO_CONFIG, tmp_path / "run", options)
    assert outcome.miou >= 0.70
    assert outcome.miou_tta >= outcome.miou - 0.02
    loss = outcome.curves["decode.loss_ce"].values
    assert np.mean(loss[-5:]) < 0.5 * np.mean(loss[:5])
