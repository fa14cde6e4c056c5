"""SIGTERM, SIGUSR1 and Ctrl-C save a checkpoint and end the run with status 0."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from mmseg_ext.engine import StopOnSignalHook
from tests.engine.run_hooks import Crash
from tests.engine.runs import log_text, run_tool, train_here, train_words, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs

SHORT = "train_cfg.max_iters=6"


def config_of(folder, extra, *signals):
    """Write a config whose run receives `signals` in iteration 3."""
    hook = "dict(type='SignalAt', iteration=3, point='before_train_iter', {})"
    hooks = ", ".join(hook.format(signal) for signal in signals)
    return write_config(folder, f"{extra}custom_hooks += [{hooks}]\n", "signal.py")


NO_HOOKS = UNVALIDATED + "custom_hooks = []\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_saves_and_ends_with_status_0(tmp_path, name):
    """At iteration 3, between two regular checkpoints; the resumed run is exact."""
    number, work = int(getattr(signal, name)), tmp_path / "work"
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as end:
        train_here(config_of(tmp_path, RANDOM + UNVALIDATED, f"number={number}"), work, SHORT)
    assert end.value.code == 0
    assert signal.getsignal(number) == before
    assert f"{name}: stopped after iteration 3" in log_text(work)
    if name == "SIGTERM":
        config = write_config(tmp_path, RANDOM + UNVALIDATED, "whole.py")
        train_here(config, tmp_path / "whole", SHORT)
        train_here(config, work, SHORT, flags=("--resume",))
        assert_same_runs(work, tmp_path / "whole", 6)


def test_without_a_checkpoint_hook_the_status_is_1(tmp_path):
    hooks = NO_HOOKS + "default_hooks['checkpoint'] = None\n"
    with pytest.raises(SystemExit) as end:
        train_here(config_of(tmp_path, hooks, "number=15"), tmp_path / "work", SHORT)
    assert "stopped after iteration 3" in end.value.code


def test_mmengines_checkpoint_hook_saves(tmp_path):
    stock = "default_hooks['checkpoint'] = dict(type='CheckpointHook', interval=4)\n"
    with pytest.raises(SystemExit) as end:
        train_here(config_of(tmp_path, NO_HOOKS + stock, "number=15"), tmp_path / "work", SHORT)
    assert end.value.code == 0
    assert (tmp_path / "work/iter_3.pth").is_file()


def test_a_signal_at_a_regular_checkpoint_saves_once(tmp_path):
    """Saving twice, mmengine would remove the file as the older one of two."""
    hook = "dict(type='SignalAt', iteration=4, point='before_train_iter', number=15)"
    config = write_config(tmp_path, f"{UNVALIDATED}custom_hooks = [{hook}]\n")
    with pytest.raises(SystemExit):
        keep = "default_hooks.checkpoint.max_keep_ckpts=1"
        train_here(config, tmp_path / "work", SHORT, keep)
    assert (tmp_path / "work/iter_4.pth").is_file()


def test_a_training_in_a_thread_leaves_the_handlers(tmp_path):
    with ThreadPoolExecutor() as pool:
        pool.submit(StopOnSignalHook().before_train, None).result()


def test_a_failed_run_restores_the_handlers(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    crash = f"{UNVALIDATED}custom_hooks = [dict(type='CrashAt', iteration=2)]\n"
    with pytest.raises(Crash):
        train_here(write_config(tmp_path, crash), tmp_path / "work", SHORT)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train_here(config_of(tmp_path, NO_HOOKS, "number=2", "number=2"), tmp_path / "work", SHORT)
    assert not list((tmp_path / "work").glob("*.pth"))


@pytest.mark.parametrize(
    ("ranks", "group"),
    [(0, True), pytest.param(2, False, marks=pytest.mark.distributed)],
    ids=["with its workers", "the first of two processes"],
)
def test_a_signal_to_several_processes_or_to_one_of_them(tmp_path, ranks, group):
    """The loader's workers get the signal too; of two processes only one gets it."""
    config = config_of(tmp_path, NO_HOOKS, f"number=15, group={group}")
    loader = ("train_dataloader.batch_size=2", f"train_dataloader.num_workers={2 * group}")
    words = train_words(config, tmp_path / "work", SHORT, *loader)
    result = run_tool("train.py", *words, ranks=ranks)
    assert result.returncode == 0, result.stderr
    assert "SIGTERM: stopped after iteration 3" in result.stdout
    assert {p.name for p in (tmp_path / "work").glob("*.pth")} == {"iter_3.pth"}
