"""A run that ends anywhere and resumes is, to the last bit, the run that was left alone."""

import time

import numpy as np
import pytest
import torch

from mmseg_ext.commands.train import parser as train_parser
from mmseg_ext.commands.train import runner_of
from tests.engine.run_hooks import Crash
from tests.engine.runs import log_text, run_tool, train_here, train_words, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs

WORKERS = "train_dataloader.num_workers"


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in one order on any machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SMALL = RANDOM + "train_dataloader['batch_size'] = 2\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Configs of the same run of 12: whole, with an exception after 10, killed while saving 8."""
    folder = tmp_path_factory.mktemp("resume")
    write_config(folder, SMALL, "validated.py")
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
    """The whole run without workers by its flags, each trained once."""
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
def test_cut_and_resumed_is_the_whole_run(folder, whole, workers, flags):
    """12 iterations against 10, of which 8 were saved, and 4 more after a resume.

    The undisturbed run loads its samples itself: workers change nothing either.
    """
    work, options = f"cut{workers}", f"{WORKERS}={workers}"
    with pytest.raises(Crash):
        go(folder, "cut.py", work, options, flags=flags)
    torch.rand(100), np.random.rand(100)  # the streams of the resuming process are elsewhere
    go(folder, "whole.py", work, options, flags=(*flags, "--resume"))
    assert_same_runs(folder / work, whole(*flags), 12)


def test_autocast_changes_the_numbers_and_keeps_the_types(whole):
    amp = torch.load(whole("--amp") / "iter_12.pth", weights_only=True)["state_dict"]
    plain = torch.load(whole() / "iter_12.pth", weights_only=True)["state_dict"]
    assert any(not torch.equal(amp[k], v) for k, v in plain.items())
    assert all(v.dtype == plain[k].dtype for k, v in amp.items())  # bfloat16 stays inside


def test_killed_process_resumes_to_the_whole_run(folder, whole):
    """SIGKILL while a checkpoint is written; the run goes on from it or from the one before."""
    work = folder / "killed"
    result = run_tool("train.py", *train_words(folder / "killed.py", work, f"{WORKERS}=2"))
    assert result.returncode == -9
    assert (work / "iter_4.pth").is_file()
    go(folder, "whole.py", "killed", flags=("--resume",))
    assert_same_runs(work, whole(), 12)
    assert not list(work.glob(".*.part*"))


def test_an_unfinished_accumulation_goes_on(folder):
    """Gradients of two of three batches are in the checkpoint of iteration 8."""
    options = "optim_wrapper.accumulative_counts=3"
    go(folder, "whole.py", "accumulated", options)
    with pytest.raises(Crash):
        go(folder, "cut.py", "accumulated_cut", options)
    saved = torch.load(folder / "accumulated_cut/iter_8.pth", weights_only=True)
    assert saved["processes"][0]["gradients"]
    go(folder, "whole.py", "accumulated_cut", options, flags=("--resume",))
    assert_same_runs(folder / "accumulated_cut", folder / "accumulated", 12)


def test_a_run_without_a_seed_keeps_the_one_it_drew(folder):
    with pytest.raises(Crash):
        go(folder, "cut.py", "drawn", "randomness.seed=None")
    go(folder, "whole.py", "drawn", "randomness.seed=None", flags=("--resume",))
    before, after = (
        torch.load(folder / f"drawn/iter_{i}.pth", weights_only=True)["meta"] for i in (8, 12)
    )
    for key in ("seed", "sampler_seed"):
        assert after[key] == before[key] != 0


def test_validation_leaves_the_random_streams_alone(folder, whole):
    """Validating now and then, which draws numbers, changes nothing of the training."""
    go(folder, "validated.py", "validated", "train_cfg.val_interval=4")
    state = ("state_dict", "optimizer", "ema_state_dict", "processes")
    assert_same_runs(folder / "validated", whole(), 12, state)


def test_resume_at_150000_starts_as_soon_as_at_10(folder):
    """The whole start: build, read the checkpoint, go to the position, one iteration."""
    go(folder, "whole.py", "late", "train_cfg.max_iters=10")
    path, seconds = folder / "late/iter_10.pth", {}
    for iteration in (10, 150_000):
        content = torch.load(path, weights_only=True)
        content["meta"]["iter"] = iteration
        torch.save(content, path)
        hook = "default_hooks.checkpoint"
        options = (f"train_cfg.max_iters={iteration + 1}", f"{hook}.save_last=False")
        words = (folder / "whole.py", path.parent, *options, f"{hook}.interval=7")
        runner = runner_of(train_parser().parse_args(train_words(*words, flags=("--resume",))))
        begin = time.perf_counter()
        runner.train()
        seconds[iteration] = time.perf_counter() - begin
        assert runner.iter == iteration + 1
    assert seconds[150_000] - seconds[10] < 1


def test_resuming_with_other_optimizer_settings_is_a_warning(folder):
    """The checkpoint's settings stay, as in mmengine; here they are named."""
    go(folder, "whole.py", "other", "train_cfg.max_iters=4")
    options = ("train_cfg.max_iters=5", "optim_wrapper.optimizer.lr=0.5")
    go(folder, "whole.py", "other", *options, flags=("--resume",))
    text = log_text(folder / "other")
    assert "learning rate [0.01] overrides the config's [0.5]" in text
    assert "weight decay" not in text.partition("overrides")[0].splitlines()[-1]
