"""Two processes over gloo: if one fails or is killed, both end, and a restart loses nothing."""

import json
import re
import time
from pathlib import Path
from signal import SIGTERM

import pytest

from tests.durable.curve_model import CONFIG, SCHEDULES
from tests.durable.stops import differences, state
from tests.engine.runs import (
    ROOT,
    free_port,
    log_text,
    run,
    run_tool,
    train_here,
    train_words,
    write_config,
)
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs
from tests.messages import check_message, lines_with, resumed_iterations

DRAWN = RANDOM + UNVALIDATED


@pytest.mark.distributed
def test_a_run_with_a_killed_process_restarts_exactly(tmp_path, monkeypatch):
    """SIGKILL to process 1 after iteration 7 of 8, without --resume on the command line."""
    monkeypatch.chdir(tmp_path)  # in the default work directories
    hooks = "custom_hooks += [dict(type='SignalAt', iteration=7, rank=1, number=9)]\n"
    words = ("--cfg-options", "train_cfg.max_iters=8", "train_dataloader.batch_size=2")
    whole, killed = (
        write_config(tmp_path, text, f"{name}.py")
        for name, text in (("whole", DRAWN), ("killed", DRAWN + hooks))
    )
    restarts = {"MAX_RESTARTS": "1", "PORT": free_port()}
    for result in (
        run_tool("train.py", whole, *words, ranks=2),
        run(ROOT / "tools/dist_train.sh", killed, "2", *words, **restarts),
    ):
        assert result.returncode == 0, result.stderr
    works = Path("work_dirs/killed"), Path("work_dirs/whole")
    assert resumed_iterations(log_text(works[0])) == [4]
    assert_same_runs(*works, 8)


STOPPED = "work_dirs/stopped"
HOOKED = 'custom_imports["imports"] += ["tests.engine.run_hooks"]\ncustom_hooks = [dict({})]\n'
# What fails, and the iteration of the last checkpoint.
FAILURES = {
    "training": ("type='CrashAt', iteration=3", 2),
    "validation": ("type='CrashAt', iteration=3, point='after_val_iter'", 2),
    "saving": ("type='CrashAt', iteration=4", 3),  # the first process saves before the next step
    "SIGKILL": ("type='SignalAt', iteration=4, number=9", 3),
}


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    """A folder with a complete run of two processes."""
    folder = tmp_path_factory.mktemp("curve")
    (folder / "curve.py").write_text(CONFIG)
    result = run_tool("train.py", "curve.py", ranks=2, folder=folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.distributed
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_process_ends_the_job(curve, tmp_path, failure):
    """Within a minute, its message comes first, and a restart goes on from the last checkpoint."""
    config, work = tmp_path / "curve.py", tmp_path / "work_dirs/curve"
    hook, saved = FAILURES[failure]
    config.write_text(CONFIG + HOOKED.format(f"{hook}, rank=1"))
    begin = time.monotonic()
    result = run_tool("train.py", "curve.py", ranks=2, folder=tmp_path)
    assert time.monotonic() - begin < 60 and result.returncode not in (0, None)
    errors = re.findall(r"^mmseg_ext: train failed: (\w+)", result.stderr, re.MULTILINE)
    assert errors[0] == ("RuntimeError" if failure == "SIGKILL" else "Crash"), result.stderr
    restarted = {"TORCHELASTIC_RESTART_COUNT": "1"}
    result = run_tool("train.py", "curve.py", ranks=2, folder=tmp_path, **restarted)
    assert result.returncode == 0, result.stderr
    assert resumed_iterations(log_text(work)) == [saved]
    expected = curve / "work_dirs/curve"
    assert not differences(state(work, work), state(expected, expected))


@pytest.mark.distributed
def test_two_processes_with_workers_stop_within_an_epoch(tmp_path):
    """At iteration 5 of 9, the second of the second epoch."""
    text = CONFIG + SCHEDULES["epochs"].replace("length=4", "length=11")
    text += "train_dataloader.update(num_workers=1, persistent_workers=True)\n"
    (tmp_path / "whole.py").write_text(text)
    stop = f"type='SignalAt', iteration=5, point='before_train_iter', number={SIGTERM:d}"
    (tmp_path / "stopped.py").write_text(text + HOOKED.format(stop))
    for words in (("whole.py",), ("stopped.py",), ("whole.py", "--work-dir", STOPPED, "--resume")):
        result = run_tool("train.py", *words, ranks=2, folder=tmp_path)
        assert result.returncode == 0, result.stderr
    work, expected = tmp_path / STOPPED, tmp_path / "work_dirs/whole"
    assert 5 in resumed_iterations(log_text(work))
    assert not differences(state(work, work), state(expected, expected))


@pytest.mark.distributed
def test_machines_without_a_common_folder(tmp_path):
    """They score as one process, also if one gets two of five images and a repeated one.

    A resume reads the checkpoint on each machine.
    """
    five = "test_dataloader = {**val_dataloader, 'dataset': {**dataset, 'indices': 5}}\n"
    metric = "test_evaluator = dict(type='CheckedIoUMetric', iou_metrics=['mIoU'])\n"
    config, found = write_config(tmp_path, RANDOM + five + metric), []
    machines = tmp_path / "first", tmp_path / "second"
    for folder in machines:
        folder.mkdir()
    path = machines[0] / "work/iter_2.pth"
    train_here(config, path.parent, "train_cfg.max_iters=2")
    for name, several in (("one", ()), ("two", machines)):
        words = (config, path, "--work-dir", name)
        result = run_tool("test.py", *words, folder=machines[0], machines=several)
        assert result.returncode == 0, result.stderr
        (scores,) = (machines[0] / name).glob("2*/2*.json")
        results = json.loads((scores.parent / "results.json").read_text())
        scores = json.loads(scores.read_text())
        found.append((results["confusion"], {k: scores[k] for k in scores if "time" not in k}))
    assert found[0] == found[1]
    assert found[0][1]["mIoU"] > 0 and sum(map(sum, found[0][0])) == 5 * 32 * 32

    options = ("train_cfg.max_iters=3", "load_from=work/iter_2.pth")
    words = train_words(config, Path("work"), *options, flags=("--resume",))
    result = run_tool("train.py", *words, machines=machines)
    assert result.returncode != 0
    line, *_ = lines_with(result.stderr, "mmseg_ext: work/iter_2.pth:")
    check_message(line, "process 1", todo=True)
