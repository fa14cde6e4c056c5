"""The lines on the terminal before the first iteration, and the log file, which misses none."""

import re
import sys

from tests.engine.runs import ROOT, run, write_config
from tests.engine.states import UNVALIDATED


def test_ten_lines_stand_before_the_first_iteration(tmp_path):
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    options = ("--cfg-options", "train_cfg.max_iters=2", "default_hooks.logger.interval=1")
    train = ROOT / "tools/train.py"
    result = run(sys.executable, train, config, "--work-dir", work, *options)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if "Iter(train)" in line)
    shown = "\n".join(lines[:start])
    assert start <= 14, shown
    assert re.search(r"model: \w+ of ResNetV1c, FCNHead; 0\.19 M parameters", shown)
    assert ", 8 images" in shown and "from 0 to 2 iterations" in shown and str(work) in shown
    (log,) = work.glob("2*/*.log")
    written = log.read_text()
    assert "System environment:" in written and "\nmodel = dict(" in written
    assert "Hooks will be executed in the following order" in written
