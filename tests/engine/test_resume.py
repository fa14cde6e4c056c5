"""Killed and resumed runs equal uninterrupted runs bit by bit."""

import multiprocessing

import numpy as np
import pytest
import torch

from mmseg_ext.engine import randomness
from tests.engine.run_hooks import Crash
from tests.engine.runs import log_text, run_tool, train_here, train_words, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs, logged

WORKERS = "train_dataloader.num_workers"
LAST = "default_hooks.checkpoint.save_last=False"


@pytest.fixture(autouse=True)
def _one_thread():
    """Use one thread, so sums have one order on any machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SMALL = RANDOM + "train_dataloader['batch_size'] = 2\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write configs of one run: complete, with an error at 10, and killed while saving 8."""
    folder = tmp_path_factory.mktemp("resume")
    drawn = "custom_hooks += [dict(type='DrawAfterValidation')]\n"
    write_config(folder, SMALL + drawn, "validated.py")
    for name, hook in (
        ("whole", ""),
        ("cut", "dict(type='CrashAt', iteration=10)"),
        ("killed", "dict(type='KillWhileSaving', iteration=8, delay=0.004)"),
    ):
        write_config(folder, f"{SMALL}{UNVALIDATED}custom_hooks += [{hook}]\n", f"{name}.py")
    return folder


def go(folder, config, work, *options, flags=()):
    train_here(folder / config, folder / work, *options, flags=flags)


@pytest.fixture(scope="module")
def whole(folder):
    """Return a function that trains the complete run without workers, once for each flags."""
    done = {}

    def trained(*flags):
        if flags not in done:
            done[flags] = name = f"whole{len(done)}"
            go(folder, "whole.py", name, flags=flags)
        return folder / done[flags]

    return trained


@pytest.mark.parametrize(
    ("workers", "flags"), [(0, ()), (2, ("--amp",))], ids=["float32", "autocast, workers"]
)
def test_a_resumed_run_equals_the_complete_run(folder, whole, workers, flags):
    """12 iterations equal 8 saved ones and 4 more after a resume.

    The uninterrupted run has no workers, so workers change nothing either.
    """
    work, options = f"cut{workers}", f"{WORKERS}={workers}"
    with pytest.raises(Crash):
        go(folder, "cut.py", work, options, flags=flags)
    torch.rand(100), np.random.rand(100)  # change the random state of the resuming process
    go(folder, "whole.py", work, options, flags=(*flags, "--resume"))
    assert not multiprocessing.active_children()  # the workers have ended
    assert_same_runs(folder / work, whole(*flags), 12)
    if flags:  # other losses than in float32
        assert set(logged(folder / work)[12].values()) != set(logged(whole())[12].values())


def test_a_killed_run_equals_the_complete_run(folder, whole):
    """SIGKILL while a checkpoint is written: the run continues from it or the one before."""
    work = folder / "killed"
    result = run_tool("train.py", *train_words(folder / "killed.py", work, f"{WORKERS}=2"))
    assert result.returncode == -9
    assert (work / "iter_4.pth").is_file()
    go(folder, "whole.py", "killed", flags=("--resume",))
    assert_same_runs(work, whole(), 12)
    assert not list(work.glob(".*.part*"))


def test_an_unfinished_accumulation_continues(folder):
    """The checkpoint of iteration 8 contains the gradients of two of three batches."""
    options = "optim_wrapper.accumulative_counts=3"
    go(folder, "whole.py", "accumulated", options)
    with pytest.raises(Crash):
        go(folder, "cut.py", "accumulated_cut", options)
    saved = torch.load(folder / "accumulated_cut/iter_8.pth", weights_only=True)
    assert saved["processes"][0]["gradients"]
    go(folder, "whole.py", "accumulated_cut", options, flags=("--resume",))
    assert_same_runs(folder / "accumulated_cut", folder / "accumulated", 12)


def test_a_run_without_a_seed_keeps_its_random_seed(folder):
    with pytest.raises(Crash):
        go(folder, "cut.py", "drawn", "randomness.seed=None")
    go(folder, "whole.py", "drawn", "randomness.seed=None", flags=("--resume",))
    before, after = (
        torch.load(folder / f"drawn/iter_{i}.pth", weights_only=True)["meta"] for i in (8, 12)
    )
    for key in ("seed", "sampler_seed"):
        assert after[key] == before[key] != 0


def test_validation_does_not_change_the_random_state(folder, whole):
    """Validation draws random numbers but does not change the training."""
    go(folder, "validated.py", "validated", "train_cfg.val_interval=4")
    state = ("state_dict", "optimizer", "ema_state_dict", "processes")
    assert_same_runs(folder / "validated", whole(), 12, state)


def test_resume_at_150000_draws_no_more_samples_than_at_10(folder, monkeypatch):
    """The start of a run builds, reads the checkpoint, and jumps to the position."""
    go(folder, "whole.py", "late", "train_cfg.max_iters=10")
    path, drawn = folder / "late/iter_10.pth", []
    derive_seed = randomness.derive_seed
    monkeypatch.setattr(randomness, "derive_seed", lambda *a: drawn.append(a) or derive_seed(*a))
    for iteration in (10, 150_000):
        content = torch.load(path, weights_only=True)
        content["meta"]["iter"] = iteration
        torch.save(content, path)
        options = (f"train_cfg.max_iters={iteration + 1}", "default_hooks.checkpoint.interval=7")
        drawn.clear()
        go(folder, "whole.py", "late", *options, LAST, flags=("--resume",))
        positions = [number for _, what, number in drawn if what == "sample"]
        assert positions == [2 * iteration, 2 * iteration + 1]


def test_resuming_with_other_optimizer_settings_is_a_warning(folder):
    """The checkpoint's settings win, as in mmengine, with a warning."""
    out = f"default_hooks.checkpoint.out_dir={folder / 'elsewhere/checkpoints'}"
    go(folder, "whole.py", "other", out, "train_cfg.max_iters=4")
    options = ("train_cfg.max_iters=5", "optim_wrapper.optimizer.lr=0.5")
    go(folder, "whole.py", "other", out, *options, flags=("--resume",))
    text = log_text(folder / "other")
    assert "learning rate [0.01] overrides the config's [0.5]" in text
    assert text.count("overrides the config's") == 1
    written = (folder / "elsewhere/checkpoints/other").glob("*.pth")
    assert {path.name for path in written} == {"iter_4.pth", "iter_5.pth"}
