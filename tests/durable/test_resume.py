"""Killed and resumed runs equal uninterrupted runs bit by bit."""

import functools
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from mmseg_ext.durable import randomness
from tests.durable.curve_model import CONFIG
from tests.durable.stops import state
from tests.engine.run_hooks import Crash
from tests.engine.runs import ROOT, log_text, train, train_here, write_config
from tests.engine.states import RANDOM, UNVALIDATED, assert_same_runs, logged
from tests.messages import lines_with

RESUME = ("--resume",)


@pytest.fixture(autouse=True)
def _restored_settings():
    """Use one thread, so sums have one order on any machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


SMALL = RANDOM + "train_dataloader['batch_size'] = 2\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write configs of one run: complete, and with an error at 10."""
    folder = tmp_path_factory.mktemp("resume")
    for name, hook in (("whole", ""), ("cut", "dict(type='CrashAt', iteration=10)")):
        write_config(folder, f"{SMALL}{UNVALIDATED}custom_hooks += [{hook}]\n", f"{name}.py")
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    """Return a function that trains the complete run without workers, once for each setting."""

    @functools.cache
    def trained(flags: tuple[str, ...] = (), *options: str) -> Path:
        work = Path(tempfile.mkdtemp(dir=folder))
        train_here(folder / "whole.py", work, *options, flags=flags)
        return work

    return trained


DETERMINISTIC = ("optim_wrapper.accumulative_counts=3", "randomness.deterministic=True")


@pytest.mark.parametrize(
    ("workers", "flags", "options"),
    [(0, (), ()), (2, ("--amp",), ()), (0, (), DETERMINISTIC)],
    ids=["float32", "autocast, workers", "deterministic, within an accumulation"],
)
def test_a_resumed_run_equals_the_complete_run(
    folder, whole, tmp_path, monkeypatch, workers, flags, options
):
    """12 iterations equal 8 saved ones and 4 more after a resume.

    The uninterrupted run has no workers, so workers change nothing either. With an accumulation the
    checkpoint contains the gradients of two of three batches.
    """
    for name in ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    words = (tmp_path, *options, f"train_dataloader.num_workers={workers}")
    with pytest.raises(Crash):
        train_here(folder / "cut.py", *words, flags=flags)
    (saved,) = torch.load(tmp_path / "iter_8.pth", weights_only=True)["processes"]
    assert bool(saved["gradients"]) == bool(options)
    torch.rand(100), np.random.rand(100)  # change the random state of the resuming process
    train_here(folder / "whole.py", *words, flags=flags + RESUME)
    assert torch.are_deterministic_algorithms_enabled() == bool(options)
    # For matrix products on a GPU.
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if options else None)
    assert not multiprocessing.active_children()  # the workers have ended
    assert_same_runs(tmp_path, whole(flags, *options), 12)
    assert "gradient of some iterations is lost" not in log_text(tmp_path)  # mmengine's words
    if flags:  # other losses than in float32
        assert logged(tmp_path)[12]["loss"] != logged(whole())[12]["loss"]


def test_a_resumed_run_can_validate_less_often(tmp_path):
    """As a training advises: the weights are equal, and the best is of the validations that ran."""
    text = SMALL + "train_cfg['val_interval'] = 2\n"
    config = write_config(tmp_path, text)
    cut = write_config(
        tmp_path, text + "custom_hooks += [dict(type='CrashAt', iteration=6)]\n", "cut.py"
    )
    whole, work = tmp_path / "whole", tmp_path / "work"
    train_here(config, whole)
    with pytest.raises(Crash):
        train_here(cut, work)
    train_here(config, work, "train_cfg.val_interval=6", flags=RESUME)
    assert_same_runs(whole, work, 12)
    scores = {step: row["mIoU"] for step, row in logged(work, "mIoU").items()}
    assert list(scores) == [2, 4, 6, 12]
    assert scores.items() <= {s: row["mIoU"] for s, row in logged(whole, "mIoU").items()}.items()
    best = max(scores, key=lambda step: scores[step])
    assert [path.name for path in work.glob("best_*")] == [f"best_mIoU_iter_{best}.pth"]


def test_resume_at_150000_draws_no_more_samples_than_at_10(folder, tmp_path, monkeypatch):
    """The start of a run builds, reads the checkpoint, and jumps to the position."""
    train_here(folder / "whole.py", tmp_path, "train_cfg.max_iters=10")
    path, drawn = tmp_path / "iter_10.pth", []
    derive_seed = randomness.derive_seed
    monkeypatch.setattr(randomness, "derive_seed", lambda *a: drawn.append(a) or derive_seed(*a))
    for iteration in (10, 150_000):
        content = torch.load(path, weights_only=True)
        content["meta"]["iter"] = iteration
        torch.save(content, path)
        drawn.clear()
        hook = "default_hooks.checkpoint"
        options = (f"train_cfg.max_iters={iteration + 1}", f"{hook}.interval=7")
        train_here(folder / "whole.py", tmp_path, *options, f"{hook}.save_last=False", flags=RESUME)
        positions = [number for _, what, number in drawn if what == "sample"]
        assert positions == [2 * iteration, 2 * iteration + 1]


def test_a_checkpoint_of_0_3_0_resumes(tmp_path):
    """The file is iteration 4 of a run of 6, within an accumulation, with averaged weights.

    The numbers are those of the run that 0.3.0 itself finished without a stop.
    """
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(ROOT / "tests/data/durable_0.3.0.pth", work / "iter_4.pth")
    config = tmp_path / "curve.py"
    config.write_text(f"{CONFIG}custom_hooks = [dict(type='EMAHook', momentum=0.1)]\n")
    train([str(config), "--work-dir", str(work), "--resume"])
    found = state(work, work)
    losses = [found["losses"][step]["loss"] for step in ("5", "6")]
    assert losses == pytest.approx([39.78793898820877, 33.550920655330025], rel=1e-6)
    assert found["scores"] == {"6": pytest.approx(0.40943736581360096, rel=1e-4)}
    assert found["best of best_curve_iter_6.pth"]
    content = torch.load(work / "iter_6.pth", weights_only=True)
    weights = content["ema_state_dict"]["module.weight"]  # not averaged
    momentum = content["optimizer"]["state"][0]["momentum_buffer"]
    assert weights.tolist() == pytest.approx([1.4296526908874512, 1.4182196855545044], rel=1e-6)
    assert momentum.tolist() == pytest.approx([-9.563365936279297, -9.626810073852539], rel=1e-6)


def test_a_resumed_run_keeps_its_random_seed_and_its_learning_rate(folder, tmp_path):
    """The checkpoint's optimizer settings win, as in mmengine, with a warning."""
    out, work = tmp_path / "elsewhere/work", tmp_path / "work"
    words = (work, f"default_hooks.checkpoint.out_dir={out.parent}", "randomness.seed=None")
    train_here(folder / "whole.py", *words, "train_cfg.max_iters=4")
    for place in (work, out):  # as after a kill while a file was written
        (place / f".file.{'0a' * 8}.part").touch()
        (place / ".my.participants").touch()
    options = ("train_cfg.max_iters=5", "optim_wrapper.optimizer.lr=0.5")
    train_here(folder / "whole.py", *words, *options, flags=RESUME)
    text = log_text(work)
    assert lines_with(text, "lr", 0.01, 0.5)
    left = {path.name for place in (work, out) for path in place.rglob(".*.part*")}
    assert left == {".my.participants"}
    assert lines_with(text, "WARNING", "batch 4", "auto_scale_lr")
    metas = [torch.load(p, weights_only=True)["meta"] for p in sorted(out.glob("*.pth"))]
    assert [meta["iter"] for meta in metas] == [4, 5]
    for key in ("seed", "sampler_seed"):
        assert metas[0][key] == metas[1][key] != 0
