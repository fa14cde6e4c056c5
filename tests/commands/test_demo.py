"""The commands of `make demo` reach the floor that the guide promises."""

import json
import re
import shlex
from pathlib import Path

import pytest
from mmengine.config import Config

from mmseg_ext.commands import train
from mmseg_ext.reports.run_data import read_run  # the figures of the report
from tests.configs import CONFIGS
from tests.engine.runs import ROOT, run_script

REQUIRED_MIOU = 70.0
# The first three quarters of the demo's 1,300 iterations, with the same schedule.
SHORTER = ["train_cfg.max_iters=980", "train_cfg.val_interval=980"]
SHORTER += ["default_hooks.checkpoint.interval=980"]


def commands_of(target: str) -> list[list[str]]:
    """Return the words after `mmseg-ext` of each command of a target in the Makefile."""
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    return [shlex.split(c) for c in re.findall("/mmseg-ext (.*)", recipe.replace("\\\n", " "))]


@pytest.mark.long
def test_the_demo_reaches_its_floor(tmp_path, monkeypatch, capsys):
    """In the default work directory, in a folder that is not the checkout."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(CONFIGS)
    (_, *words), *later = commands_of("demo")
    assert train.main([*words, "--cfg-options", *SHORTER]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if "it/s" in line]
    # A slow machine prints lines in between, so that none is waited for too long.
    counts = [int(re.search(r"(\d+)/980 ", line)[1]) for line in shown]
    assert [count for count in counts if count % 20 == 0] == [*range(20, 981, 20)]
    assert counts == sorted(counts) and " 980/980  loss 0." in shown[-1]
    assert not any("Iter(train)" in line for line in lines)
    for command in later:
        command = [word.replace("iter_1300", "iter_980") for word in command]
        result = run_script(ROOT / "mmseg_ext/__main__.py", *command, folder=tmp_path)
        assert result.returncode == 0, result.stderr
    work = Path("work_dirs/ea_r18_shapes")
    assert (work / "report.html").is_file()
    (log, _) = sorted(work.glob("2*/2*.log"))
    assert "Iter(train) [980/980]" in log.read_text()
    run = read_run(work)
    assert 100 * run.results.miou >= REQUIRED_MIOU
    assert f"  validation: aAcc {100 * run.results.pixel_accuracy:.4g}" in "\n".join(lines)
    (tested,) = work.glob("2*/2*.json")
    assert json.loads(tested.read_text())["mIoU"] > 100 * run.results.miou  # several scales, flips


def test_compared_configs_differ_in_the_head_alone():
    def rest(name: str) -> dict:
        settings = Config.fromfile(CONFIGS / f"{name}_r18_shapes.py").to_dict()
        settings.pop("norm_cfg", None)
        settings["model"].pop("decode_head")
        return settings

    assert rest("ea") == rest("fcn") == rest("danet")
