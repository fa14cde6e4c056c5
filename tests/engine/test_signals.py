"""SIGTERM, SIGUSR1, Ctrl-C: everything saved, a message, status 0, a resume that loses nothing."""

import signal

import pytest

from mmseg_ext.commands.train import main as train
from tests.engine.runs import run_tool, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("signals")


def arguments(folder, config, work, *flags):
    name = f"visualizer.name={config}{work}{len(flags)}"
    line = [str(folder / config), "--work-dir", str(folder / work), *flags]
    return [*line, "--cfg-options", name, "train_cfg.max_iters=6"]


def log_text(work):
    return "".join(p.read_text() for p in sorted(work.glob("2*/*.log")))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_saves_and_ends_with_status_0(folder, name):
    """At iteration 3, out of turn: the resumed run is the whole run to the last bit."""
    number = int(getattr(signal, name))
    hook = f"custom_hooks += [dict(type='SignalAt', iteration=3, number={number})]\n"
    write_config(folder, RANDOM + UNVALIDATED + hook, "stopped.py")
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as end:
        train(arguments(folder, "stopped.py", name))
    assert end.value.code == 0
    assert signal.getsignal(number) == before
    text = log_text(folder / name)
    assert f"{name}: stopped after iteration 3 with everything saved in" in text
    if name == "SIGTERM":
        write_config(folder, RANDOM + UNVALIDATED, "whole.py")
        train(arguments(folder, "whole.py", "whole"))
        train(arguments(folder, "whole.py", name, "--resume"))
        assert_same_runs(folder / name, folder / "whole", 6)


@pytest.mark.parametrize("kind", ["CheckpointHook", None])
def test_with_mmengines_checkpoint_hook_and_with_none(tmp_path, kind):
    change = f".update(type={kind!r})" if kind else " = None"
    hooks = (
        f"default_hooks['checkpoint']{change}\n"
        "custom_hooks = [dict(type='SignalAt', iteration=3, number=15)]\n"
    )
    write_config(tmp_path, UNVALIDATED + hooks, "stock.py")
    with pytest.raises(SystemExit) as end:
        train(arguments(tmp_path, "stock.py", "work"))
    if kind:
        assert end.value.code == 0
        assert "SIGTERM: stopped after iteration 3" in log_text(tmp_path / "work")
        assert (tmp_path / "work/iter_3.pth").is_file()
    else:
        assert "stopped after iteration 3, and nothing was saved" in end.value.code


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    hooks = [f"dict(type='SignalAt', iteration={i}, number=2)" for i in (3, 3)]
    write_config(tmp_path, UNVALIDATED + f"custom_hooks = [{', '.join(hooks)}]\n", "twice.py")
    with pytest.raises(KeyboardInterrupt):
        train(arguments(tmp_path, "twice.py", "work"))
    assert not list((tmp_path / "work").glob("*.pth"))


def test_during_validation_it_ends_at_once_where_the_checkpoint_is_there(tmp_path):
    hook = (
        "custom_hooks = [dict(type='SignalInValidation')]\n"
        "default_hooks['checkpoint']['interval'] = 2\n"
        "train_cfg['val_interval'] = 2\n"
    )
    write_config(tmp_path, hook, "val.py")
    with pytest.raises(SystemExit) as end:
        train(arguments(tmp_path, "val.py", "val"))
    assert end.value.code == 0
    assert "SIGTERM: stopped after iteration 2" in log_text(tmp_path / "val")


def test_the_whole_process_group_may_get_it(tmp_path):
    """A job's workers get the signal too (Slurm, a terminal): the state is saved all the same."""
    hook = "custom_hooks = [dict(type='SignalAt', iteration=3, number=15, group=True)]\n"
    write_config(tmp_path, UNVALIDATED + hook, "group.py")
    result = run_tool(
        "train.py",
        *arguments(tmp_path, "group.py", "work"),
        "train_dataloader.num_workers=2",
    )
    assert result.returncode == 0, result.stderr
    assert "SIGTERM: stopped after iteration 3" in result.stdout
    assert (tmp_path / "work/iter_3.pth").is_file()


@pytest.mark.distributed
def test_a_signal_to_one_of_two_processes_stops_both(tmp_path):
    """Only the first gets it; both end with 0 after the same iteration, else one would wait."""
    hook = "custom_hooks = [dict(type='SignalAt', iteration=3, number=15)]\n"
    config = write_config(tmp_path, UNVALIDATED + hook)
    options = ("train_cfg.max_iters=6", "train_dataloader.batch_size=2")
    words = [config, "--work-dir", tmp_path / "work", "--cfg-options", *options]
    result = run_tool("train.py", *words, ranks=2)
    assert result.returncode == 0, result.stderr
    assert "SIGTERM: stopped after iteration 3" in result.stdout
    assert {p.name for p in (tmp_path / "work").glob("*.pth")} == {"iter_3.pth"}
