"""SIGTERM, SIGUSR1 and Ctrl-C save a checkpoint and end the run with status 0."""

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmseg_ext.durable import StopOnSignalHook
from mmseg_ext.errors import RunError
from tests.engine.runs import log_text, run_tool, train_here, train_words, write_config
from tests.engine.states import UNVALIDATED
from tests.messages import check_message, lines_with

SHORT = "train_cfg.max_iters=6"


def config_of(folder: Path, *numbers: int, extra="", iteration: int = 3, group=False) -> Path:
    """Write a config whose run receives signals in the iteration."""
    where = f"iteration={iteration}, point='before_train_iter', group={group}"
    hooks = [f"dict(type='SignalAt', {where}, number={int(number)})" for number in numbers]
    text = f"{UNVALIDATED}custom_hooks = [{', '.join(hooks)}]\n{extra}"
    return write_config(folder, text, "signal.py")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_saves_and_ends_with_status_0(tmp_path, name):
    """At iteration 3, between two regular checkpoints."""
    number, work = getattr(signal, name), tmp_path / "work"
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as end:
        train_here(config_of(tmp_path, number), work, SHORT)
    assert end.value.code == 0
    assert signal.getsignal(number) == before
    assert lines_with(log_text(work), f"{name}:", 3, "iter_3.pth", "--resume")
    assert (work / "iter_3.pth").is_file()


@pytest.mark.parametrize(
    ("checkpoint", "iteration", "saved"),
    [
        ("None", 3, []),
        ("dict(type='CheckpointHook', interval=4)", 3, ["iter_3.pth"]),
        # Saving twice, mmengine would remove the file as the older one of two.
        ("dict(type='DurableCheckpointHook', interval=4, max_keep_ckpts=1)", 4, ["iter_4.pth"]),
    ],
    ids=["no hook", "mmengine's hook", "at a regular checkpoint"],
)
def test_checkpoint_hooks(tmp_path, checkpoint, iteration, saved):
    """The status is 0 only if the checkpoint is saved."""
    extra = f"default_hooks['checkpoint'] = {checkpoint}\n"
    config = config_of(tmp_path, signal.SIGTERM, extra=extra, iteration=iteration)
    with pytest.raises(SystemExit if saved else RunError) as end:
        train_here(config, tmp_path / "work", SHORT)
    if saved:
        assert end.value.code == 0
    else:
        check_message(end.value, 3, where="SIG", todo="default_hooks.checkpoint")
    assert [path.name for path in (tmp_path / "work").glob("*.pth")] == saved


def test_a_training_in_a_thread_leaves_the_handlers():
    with ThreadPoolExecutor() as pool:
        pool.submit(StopOnSignalHook().before_train, None).result()


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    config = config_of(tmp_path, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train_here(config, tmp_path / "work", SHORT)
    assert not list((tmp_path / "work").glob("*.pth"))


@pytest.mark.parametrize(
    ("ranks", "group"),
    [(0, True), pytest.param(2, False, marks=pytest.mark.distributed)],
    ids=["with its workers", "the first of two processes"],
)
def test_a_signal_to_several_processes_or_to_one_of_them(tmp_path, ranks, group):
    """The loader's workers get the signal too; of two processes only one gets it.

    Two processes exchange two numbers per iteration: finite or not, and the signal.
    """
    extra = "custom_hooks += [dict(type='CountExchanges')]\n" if ranks else ""
    config = config_of(tmp_path, signal.SIGTERM, extra=extra, group=group)
    loader = ("train_dataloader.batch_size=2", f"train_dataloader.num_workers={2 * group}")
    words = train_words(config, tmp_path / "work", SHORT, *loader)
    result = run_tool("train.py", *words, ranks=ranks)
    assert result.returncode == 0, result.stderr
    assert lines_with(result.stdout, "SIGTERM:", 3, "iter_3.pth", "--resume")
    assert {p.name for p in (tmp_path / "work").glob("*.pth")} == {"iter_3.pth"}
    if ranks:
        counts = re.findall("(.) exchanges in iteration (.)", result.stdout)
        assert counts == [("2", "1"), ("2", "2")]
