"""Work directories: files of other runs, the lock, and repeated validations."""

import errno
import fcntl
import json
import multiprocessing
import os
import platform
import signal
import stat
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import DATA_SAMPLERS, HOOKS

from mmseg_ext.commands import run
from mmseg_ext.commands.train import main as train  # its errors, not its exit status
from mmseg_ext.durable import DurableRunner
from mmseg_ext.durable.work_dir import lock_work_dir
from mmseg_ext.engine.build import build_train_runner
from mmseg_ext.engine.config import load_config
from mmseg_ext.errors import CheckpointError, LaunchError, RunError
from tests.durable.curve_model import CONFIG, SCHEDULES
from tests.engine.run_hooks import Crash
from tests.engine.runs import built, log_text, run_tool, train_here, train_words, write_config
from tests.engine.states import UNVALIDATED, assert_same, logged
from tests.messages import check_message, lines_with, raises_message, resumed_iterations

VALIDATED = "train_cfg['val_interval'] = 4\n"


def go(config: Path, work: Path, *options: str, resume: bool = False) -> None:
    flags = ("--resume",) * resume
    train_here(config, work, "train_cfg.max_iters=8", *options, flags=flags)


def test_paths_in_a_checkpoint_are_not_removed(tmp_path):
    """A crafted checkpoint names other files as the older best and as older checkpoints."""
    config, work = write_config(tmp_path, VALIDATED), tmp_path / "work"
    go(config, work, "train_cfg.max_iters=4")
    precious = [tmp_path / "best_mIoU_iter_4.pth", tmp_path / "iter_x.pth"]
    for path in precious:
        path.write_bytes(b"precious")
    content = torch.load(work / "iter_4.pth", weights_only=True)
    info = content["message_hub"]["runtime_info"]
    info.update(best_ckpt=str(precious[0]), best_score=-1.0, keep_ckpt_ids=["/../../iter_x", 4])
    info["leaving_ckpt_ids"] = ["/../../iter_x"]
    content["message_hub"]["resumed_keys"].update(dict.fromkeys(info, True))
    torch.save(content, work / "iter_4.pth")
    go(config, work, resume=True)
    assert resumed_iterations(log_text(work)) == [4]
    assert (work / "best_mIoU_iter_8.pth").is_file()
    assert [path.read_bytes() for path in precious] == [b"precious"] * 2


def test_a_resume_at_the_end_names_the_last_checkpoint(tmp_path):
    """A stop came after iteration 8 was saved, and before `last_checkpoint` was written."""
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    keep = "default_hooks.checkpoint.max_keep_ckpts=1"
    go(config, work, keep)
    (work / "last_checkpoint").write_text(str(work / "iter_4.pth"))
    go(config, work, keep, resume=True)
    assert (work / "last_checkpoint").read_text() == str(work / "iter_8.pth")
    assert len(lines_with(log_text(work), f"{work}/iter_8.pth:")) == 1


def test_the_best_stays_under_another_spelling_of_its_path(tmp_path, monkeypatch):
    """A hook writes a relative path after the validation of iteration 3; iteration 4 is saved."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "curve.py").write_text(CONFIG)
    runner, best = build_train_runner("curve.py"), []

    class Respell(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if path := runner.message_hub.runtime_info.get("best_ckpt"):
                runner.message_hub.update_info("best_ckpt", os.path.relpath(path))
                best.append(Path(path).is_file())

    runner.register_hook(Respell())
    runner.train()
    assert best == [True] * 3


def test_weights_alone_cannot_be_resumed(tmp_path):
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    go(config, work, "train_cfg.max_iters=1")
    weights = tmp_path / "weights.pth"
    content = torch.load(work / "iter_1.pth", weights_only=True)
    for keys in (["state_dict"], ["state_dict", "meta"], ["state_dict", "message_hub"]):
        torch.save({key: content[key] for key in keys}, weights)
        with pytest.raises(CheckpointError) as end:
            go(config, tmp_path / "new", f"load_from={weights}", resume=True)
        check_message(end.value, weights, todo=f"load_from={weights}")


def test_a_new_run_does_not_resume_from_an_older_run(tmp_path):
    """Also if it ended before its first checkpoint."""
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    crash = "custom_hooks = [dict(type='CrashAt', iteration=2)]\n"
    crashing = write_config(tmp_path, UNVALIDATED + crash, "crashing.py")
    go(config, work)  # the old one: iter_4, iter_8
    run_of = lambda name: torch.load(work / name, weights_only=True)["meta"]["run"]  # noqa: E731
    old = run_of("iter_8.pth")
    with pytest.raises(Crash):
        go(crashing, work)
    assert lines_with(log_text(work), "iter_4.pth", "iter_8.pth")
    go(config, work, "train_cfg.max_iters=4", resume=True)
    assert not resumed_iterations(log_text(work))
    assert run_of("iter_4.pth") != old == run_of("iter_8.pth")
    go(config, work, "train_cfg.max_iters=5", resume=True)
    assert resumed_iterations(log_text(work)) == [4]
    go(config, work, f"load_from={work / 'iter_8.pth'}", "train_cfg.max_iters=9", resume=True)
    assert resumed_iterations(log_text(work)) == [4, 8]  # named explicitly


@pytest.mark.parametrize("start", ["", "load_from = 'weights.pth'\n"])
def test_a_relative_out_dir_from_another_folder_is_refused(tmp_path, monkeypatch, start):
    """As a missing file in the default folder; from the first folder the run resumes."""
    out = "default_hooks['checkpoint'].update(out_dir='out', filename_tmpl='step_{}.pth')\n"
    visualizer = "visualizer = dict(type='Visualizer')\n"
    (tmp_path / "curve.py").write_text(CONFIG + visualizer + out + start)
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"weight": torch.zeros(2)}}, "weights.pth")
    go(Path("curve.py"), Path("work"))
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir("inside")
    with raises_message(CheckpointError, "step_8.pth", "'out/work'", todo="load_from=FILE"):
        go(Path("../curve.py"), Path("../work"), resume=True)
    monkeypatch.chdir(tmp_path)
    go(Path("curve.py"), Path("work"), resume=True)
    assert resumed_iterations(log_text(tmp_path / "work")) == [8]


def test_a_relative_out_dir_of_another_run_is_refused(tmp_path, monkeypatch):
    """From a folder where another run has checkpoints under the same relative path."""
    out, folders = "default_hooks.checkpoint.out_dir=out", (tmp_path / "one", tmp_path / "two")
    for folder in folders:
        folder.mkdir()
        monkeypatch.chdir(folder)
        curve(folder, "", out, "train_cfg.max_iters=4")
    with raises_message(CheckpointError, "iter_4.pth", todo="load_from=FILE"):
        curve(folders[0], "", out, resume=True)
    for folder in folders:  # neither lost its checkpoint
        monkeypatch.chdir(folder)
        text = log_text(curve(folder, "", out, resume=True))
        assert resumed_iterations(text) == [4]


def hold(work: Path, held) -> None:
    """Hold the lock as a training with a worker of its loader; send the worker's process id."""
    with lock_work_dir(str(work)):
        worker = os.fork()
        if worker:
            held.send(worker)
        time.sleep(60)
        os._exit(0)


def test_a_second_training_in_the_folder_is_refused(tmp_path):
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    work.mkdir()
    processes = multiprocessing.get_context("fork")
    receiver, held = processes.Pipe()
    holder = processes.Process(target=hold, args=(work, held))
    holder.start()
    try:
        assert receiver.poll(50)
        with pytest.raises(LaunchError) as end:
            go(config, work, "train_cfg.max_iters=1")
        assert f"(process {holder.pid} on {platform.node()})" in str(end.value)
        written = [path.name for path in work.iterdir() if path.is_file()]
        assert written == [".training"]  # above all not the first training's config
    finally:
        holder.kill()
        holder.join()
    go(config, work, "train_cfg.max_iters=1")  # the lock of a killed process is free
    assert (work / config.name).is_file()
    os.kill(receiver.recv(), signal.SIGKILL)  # although its worker has not ended yet
    with lock_work_dir(str(work)):  # and of a run that has ended
        pass


def curve(folder: Path, extra: str = "", *options: str, resume: bool = False) -> Path:
    """Train the model of two parameters; return the work directory."""
    (folder / "curve.py").write_text(CONFIG + extra)
    words = [str(folder / "curve.py"), "--work-dir", str(folder / "work"), *["--resume"] * resume]
    train([*words, "--cfg-options", "randomness.seed=0", *options])
    return folder / "work"


def test_runs_in_work_directories_of_one_name_share_out_dir(tmp_path):
    """Not at once. The second run overwrites the newest checkpoint of the first one, then all."""
    out = f"default_hooks.checkpoint.out_dir={tmp_path}/out"
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, interval in ((one, 2), (two, 5)):
        folder.mkdir()
        options = "train_cfg.max_iters=5", f"default_hooks.checkpoint.interval={interval}"
        curve(folder, "", out, *options)
    for folder, step in ((one, 4), (two, 5)):
        text = log_text(curve(folder, "", out, "train_cfg.max_iters=8", resume=True))
        assert resumed_iterations(text) == [step]
        assert bool(lines_with(text, "last_checkpoint", "iter_5.pth")) == (step == 4)
    with raises_message(CheckpointError, "iter_8.pth", todo="load_from=FILE"):
        curve(one, "", out, resume=True)
    with (
        lock_work_dir(str(tmp_path / "out/work")),
        mock.patch.object(fcntl, "lockf", side_effect=[None, BlockingIOError]),
        raises_message(LaunchError, f"{str(tmp_path / 'out/work')!r}", todo="--work-dir"),
    ):
        curve(two, "", out)


TEMPLATES = "iter+{}_v2.pth", "{:06d}.ckpt"


@pytest.mark.parametrize("template", TEMPLATES)
def test_other_names_of_checkpoints(template, tmp_path):
    """A digit after the number, or another suffix: old files are removed, and a run resumes."""
    extra = f"default_hooks['checkpoint'].update(filename_tmpl='{template}')\n"
    curve(tmp_path, extra, "train_cfg.max_iters=3")
    work = curve(tmp_path, extra, resume=True)
    assert resumed_iterations(log_text(work)) == [3]
    found = {path.name for path in work.iterdir() if path.suffix in (".pth", ".ckpt")}
    newest = template.format(6)
    assert found == {template.format(4), newest, f"best_curve_{newest}"}


def test_without_regular_checkpoints_the_last_best_one_stays(tmp_path):
    extra = "default_hooks['checkpoint'].update(interval=100, save_last=False)\n"
    work = curve(tmp_path, extra)
    assert [path.name for path in work.glob("*.pth")] == ["best_curve_iter_6.pth"]


WEIGHTS = """
default_hooks["checkpoint"].update(interval=4)
train_cfg["val_interval"] = 100
custom_hooks = [dict(type="DurableCheckpointHook", by_epoch=False, interval=3, priority="LOW",
                     filename_tmpl="weights_{}.pth", save_optimizer=False, max_keep_ckpts=3,
                     out_dir="elsewhere")]
"""
CRASH = "custom_hooks += [dict(type='CrashAt', iteration=7)]\n"
SIGTERM = CRASH.replace("CrashAt'", "SignalAt', number=15, point='before_train_iter'")


def test_a_second_hook_that_archives_weights(tmp_path, monkeypatch):
    """A resume and a stop signal use the other hook's checkpoints, which have the optimizer."""
    monkeypatch.chdir(tmp_path)
    work, longer = tmp_path / "work", "train_cfg.max_iters=10"
    with pytest.raises(Crash):
        curve(tmp_path, WEIGHTS + CRASH, longer)
    assert Path((work / "last_checkpoint").read_text()).name == "weights_6.pth"
    with pytest.raises(SystemExit):
        curve(tmp_path, WEIGHTS + SIGTERM, longer, resume=True)
    assert resumed_iterations(log_text(work))[-1] == 4
    assert lines_with(log_text(work), "SIGTERM:", work / "iter_7.pth", "--resume")
    curve(tmp_path, WEIGHTS, longer, resume=True)
    assert resumed_iterations(log_text(work))[-1] == 7
    assert not lines_with(log_text(work), "WARNING", "optimizer")
    kept = {f"weights_{i}.pth" for i in (6, 9, 10)} | {f"iter_{i}.pth" for i in (8, 10)}
    assert {p.name for p in work.glob("[iw]*_*.pth")} == kept
    assert lines_with(log_text(work), "out_dir='elsewhere/work'", "weights_{}.pth")
    # Checkpoints after the one that is named do not count.
    curve(tmp_path, WEIGHTS, "train_cfg.max_iters=9", f"load_from={work}/iter_8.pth", resume=True)
    assert {p.name for p in work.glob("iter_*")} == {f"iter_{i}.pth" for i in (8, 9, 10)}


KEEP = "default_hooks['checkpoint'].update(max_keep_ckpts={})\n"


def test_a_smaller_number_of_kept_checkpoints_at_a_resume(tmp_path):
    """The newest ones stay; 9 is one for its score. The clock is set back in between."""
    clock = time.time()
    with mock.patch.object(time, "time", lambda: clock + 3600):
        curve(tmp_path, KEEP.format(-1))
    for last, kept in ((8, (4, 6, 8)), (10, (8, 9, 10))):
        work = curve(tmp_path, KEEP.format(3), f"train_cfg.max_iters={last}", resume=True)
        assert resumed_iterations(log_text(work))[-1] == last - 2
        assert {p.name for p in work.glob("iter_*.pth")} == {f"iter_{i}.pth" for i in kept}


def test_a_loop_of_iterations_over_a_finite_sampler_resumes_exactly(tmp_path, monkeypatch):
    """In the third pass over the data; mmengine waits two seconds after each."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    losses = []
    for name, stops in (("whole", [14]), ("resumed", [7, 14])):
        (tmp_path / name).mkdir()
        for stop in stops:
            more = (f"train_cfg.max_iters={stop}", "train_cfg.val_interval=100")
            work = curve(tmp_path / name, SCHEDULES["passes"], *more, resume=stop != stops[0])
        losses.append({step: row["loss"] for step, row in logged(work).items()})
    assert losses[0] == losses[1] and len(losses[0]) == 14


@HOOKS.register_module()
class SpoilGradient(Hook):
    """In the first iteration of an accumulation."""

    priority = "VERY_HIGH"

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 3:
            runner.model.weight.grad.fill_(float("nan"))


def test_no_gradient_that_is_not_finite_is_saved(tmp_path):
    hooks = "custom_hooks = [dict(type='SpoilGradient'), dict(type='FiniteLossHook')]\n"
    with raises_message(RunError, "weight", 4, todo="--resume"):
        curve(tmp_path, hooks)
    assert (tmp_path / "work/iter_3.pth").is_file()
    assert not (tmp_path / "work/iter_4.pth").exists()


def test_mmengines_hook_removes_nothing_elsewhere(tmp_path, monkeypatch):
    """A best checkpoint of the same name is in the current directory."""
    extra = "default_hooks['checkpoint'].update(type='CheckpointHook')\n"
    monkeypatch.chdir(tmp_path)
    work = curve(tmp_path, extra)
    (before,) = work.glob("best_*.pth")
    Path(before.name).write_text("precious")
    curve(tmp_path, extra, "train_cfg.max_iters=30", resume=True)
    assert Path(before.name).read_text() == "precious"
    assert len([*work.glob("best_*.pth")]) == 1


def test_what_a_resume_cannot_continue_is_told(tmp_path):
    extra = "default_hooks['checkpoint'].update(save_optimizer=False, save_param_scheduler=False)\n"
    work = curve(tmp_path, extra, "train_cfg.max_iters=4", "default_hooks.checkpoint.by_epoch=True")
    assert lines_with(log_text(work), "WARNING", "by_epoch=False")
    curve(tmp_path, "", resume=True)
    for key in ("optimizer", "param_schedulers"):
        assert lines_with(log_text(work), "WARNING", work / "epoch_1.pth", key)
    average = "custom_hooks = [dict(type='EMAHook')]\n"
    assert "overrides" not in log_text(
        curve(tmp_path, average, "train_cfg.max_iters=7", resume=True)
    )
    changed = "param_scheduler[0]['power'] = 2\ntrain_dataloader['dataset']['length'] = 9\n"
    changed += "optim_wrapper['optimizer']['momentum'] = 0.5\n"
    curve(tmp_path, changed, resume=True)
    for values in (("momentum", 0.9, 0.5, "PolyLR.power", 2.0), (8, 9, "images"), ("EMAHook",)):
        assert len(lines_with(log_text(work), "WARNING", "iter_7.pth:", *values)) == 1
    for kind, key in (("AdamW", "betas"), ("RMSprop", "dampening")):
        with raises_message(CheckpointError, key, todo="load_from="):
            curve(tmp_path, f"optim_wrapper['optimizer'] = dict(type='{kind}')\n", resume=True)


def test_a_longer_resume_that_would_train_nothing_is_refused(tmp_path):
    """The schedules of the checkpoint have ended at rate 0; with a last rate they continue."""
    scheduled = "param_scheduler = [dict(type='{}', {}, by_epoch=False, end={})]\n"
    for kind, more, trains in (
        ("PolyLR", "eta_min=0.0", False),
        ("PolyLR", "eta_min=0.01", True),
        ("LinearLR", "start_factor=1.0, end_factor=0.0", False),
    ):
        (folder := tmp_path / f"{kind}{more}").mkdir()
        curve(folder, scheduled.format(kind, more, 4), "train_cfg.max_iters=4")
        longer = scheduled.format(kind, more, 8)
        if trains:
            work = curve(folder, longer, "train_cfg.max_iters=8", resume=True)
            assert resumed_iterations(log_text(work)) == [4]
        else:
            with raises_message(CheckpointError, "4 iterations", 0, todo="load_from="):
                curve(folder, longer, "train_cfg.max_iters=8", resume=True)
        # A run of the complete length resumes from any of its checkpoints, also at the end.
        curve(folder, scheduled.format(kind, more, 4), "train_cfg.max_iters=4", resume=True)


@DATA_SAMPLERS.register_module()
class OwnSampler(DefaultSampler):
    """A sampler that cannot start within an epoch."""


def test_an_epoch_of_another_sampler_starts_again(tmp_path):
    """After a stop at 5 of 6 iterations; before, it ended after the iterations of the schedule."""
    own = SCHEDULES["epochs"] + "train_dataloader['sampler']['type'] = 'OwnSampler'\n"
    stop = (
        "custom_hooks = [dict(type='SignalAt', number=15, iteration=5, point='before_train_iter')]"
    )
    with pytest.raises(SystemExit):
        curve(tmp_path, f"{own}{stop}\n")
    work = curve(tmp_path, own, resume=True)
    assert lines_with(log_text(work), "WARNING", "epoch 3", "iteration 4")
    assert lines_with(log_text(work), "WARNING", "InfiniteSampler")
    meta = torch.load(work / "epoch_3.pth", weights_only=True)["meta"]
    assert (meta["epoch"], meta["iter"]) == (3, 6)


def test_scores_of_another_metric_are_not_compared(tmp_path, monkeypatch):
    """`save_best` changes at resumes from other folders; 'other' is the negative of 'curve'."""
    best, scores = "default_hooks.checkpoint.save_best=", {}
    names = ["curve", "other", "other", "[other,curve]", "[other,curve]", "other"]
    for last, name in zip(range(3, 21, 3), names, strict=True):
        (tmp_path / str(last)).mkdir()
        monkeypatch.chdir(tmp_path / str(last))
        options = f"{best}{name}", f"train_cfg.max_iters={last}"
        work = curve(Path(".."), "", *options, resume=last > 3)
        info = torch.load(work / f"iter_{last}.pth", weights_only=True)["message_hub"][
            "runtime_info"
        ]
        scores[last] = {key: info[key] for key in info if key.startswith("best_score")}
        assert all((work / info[key]).is_file() for key in info if key.startswith("best_ckpt"))
    logs = [row["other"] for row in logged(work, "other").values()]
    assert len(logs) == 6 and scores[3] == {"best_score": -logs[0]}
    for last in (6, 9, 18):
        assert scores[last] == {"best_score": max(logs[1 : last // 3])}
    # The best of 'curve' is of the runs that ask for it.
    assert scores[12] == {"best_score_other": max(logs[1:4]), "best_score_curve": -logs[3]}
    assert scores[15] == {"best_score_other": max(logs[1:5]), "best_score_curve": -min(logs[3:5])}


def test_a_group_can_share_a_work_directory(tmp_path):
    before = os.umask(0o002)
    with lock_work_dir(str(tmp_path)):
        os.umask(before)
    assert stat.S_IMODE((tmp_path / ".training").stat().st_mode) == 0o664


def test_the_lock_follows_no_link(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".training").symlink_to(tmp_path / "precious")
    with raises_message(OSError, str(tmp_path / ".training")), lock_work_dir(str(tmp_path)):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, capsys):
    """As some NFS and Lustre mounts."""
    monkeypatch.setattr(fcntl, "lockf", mock.Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    (tmp_path / ".training").write_text("process 7 on another\n" * 9)
    with lock_work_dir(str(tmp_path)):
        text = (tmp_path / ".training").read_text()
        assert text == f"process {os.getpid()} on {platform.node()}\n"
    assert capsys.readouterr().out.count("locks") == 2  # in a warning, with the system's message


def test_a_runner_built_by_keywords(tmp_path):
    """As in mmengine's tutorials: without a config. It validates, trains and resumes."""
    cfg = load_config(str(write_config(tmp_path)))
    hook = {**cfg.default_hooks.checkpoint, "interval": 2, "filename_tmpl": "at_{}.pth"}
    keys = ("model", "train_dataloader", "train_cfg", "optim_wrapper")
    keys += ("val_dataloader", "val_cfg", "val_evaluator", "default_scope")
    for last in (2, 4):
        cfg.train_cfg.max_iters = last
        settings = {key: cfg[key] for key in keys} | {"default_hooks": {"checkpoint": hook}}
        settings |= {"work_dir": str(tmp_path / "work"), "resume": last == 4}
        runner = DurableRunner(**settings)
        runner.train()
        assert runner.iter == last and (tmp_path / f"work/at_{last}.pth").is_file()
    assert log_text(tmp_path / "work").count("resumed") == 1
    resumed = DurableRunner(**settings).val()["mIoU"]
    settings |= {"resume": False, "load_from": str(tmp_path / "work/at_4.pth")}
    assert DurableRunner(**settings).val()["mIoU"] == resumed > 0


def test_a_saved_validation_does_not_run_again(tmp_path):
    """The best checkpoint is saved after its validation."""
    config, work = write_config(tmp_path, VALIDATED), tmp_path / "work"
    go(config, work, "train_cfg.max_iters=4", "default_hooks.checkpoint.interval=2")
    best = f"load_from={work / 'best_mIoU_iter_4.pth'}"
    go(config, tmp_path / "new", best, "train_cfg.max_iters=5", resume=True)
    assert list(logged(tmp_path / "new", "mIoU")) == [5]
    # Nor one at an iteration without a validation.
    options = (f"load_from={work / 'iter_2.pth'}", "train_cfg.max_iters=6")
    go(config, tmp_path / "next", *options, "train_cfg.val_interval=5", resume=True)
    assert list(logged(tmp_path / "next", "mIoU")) == [5, 6]


def test_the_averaged_weights_are_saved_for_testing(tmp_path):
    """`state_dict` has EMAHook's average, and `ema_state_dict` the weights of the optimizer."""
    extra = f"{VALIDATED}custom_hooks = [dict(type='EMAHook', momentum=0.5)]\n"
    words = train_words(write_config(tmp_path, extra), tmp_path / "work", "train_cfg.max_iters=4")
    trained = built(*words)
    trained.message_hub.update_info("function", len)
    trained.train()
    assert "['message_hub.runtime_info.function (" in log_text(tmp_path / "work")
    (average,) = (h.ema_model.module for h in trained.hooks if isinstance(h, EMAHook))
    own, averaged = (
        {name: p.detach() for name, p in model.named_parameters()}
        for model in (trained.model, average)
    )
    assert not any(torch.equal(averaged[name], own[name]) for name in own)
    for name in ("iter_4.pth", "best_mIoU_iter_4.pth"):
        saved = torch.load(tmp_path / "work" / name, weights_only=True)
        assert_same({k: saved["state_dict"][k] for k in own}, averaged)
        assert_same({k: saved["ema_state_dict"][f"module.{k}"] for k in own}, own)


@pytest.mark.distributed
def test_two_processes_log_the_score_of_the_checkpoint(tmp_path):
    """Running statistics differ between ranks; rank 0's are saved, averaged, and validated."""
    average = "dict(type='EMAHook', momentum=0.5, update_buffers=True)"
    record = f"dict(type='RecordStatistics', path={str(tmp_path / 'means')!r})"
    config = write_config(tmp_path, f"{VALIDATED}custom_hooks = [{average}, {record}]\n")
    config.write_text(config.read_text().replace('type="GN", num_groups=4', 'type="BN"'))
    work = tmp_path / "work"
    options = ("train_cfg.max_iters=5", "train_dataloader.batch_size=2")
    result = run_tool("train.py", *train_words(config, work, *options), ranks=2)
    assert result.returncode == 0, result.stderr
    means = [(tmp_path / f"means.{rank}").read_text().split() for rank in range(2)]
    # Two validations of four images.
    assert means[0][:4] == means[1][:4] != means[0][4:] == means[1][4:]
    words = [str(config), str(work / "iter_4.pth"), "--work-dir", str(tmp_path / "test")]
    assert run("test", words) == 0
    (path,) = (tmp_path / "test").glob("2*/2*.json")
    scores = json.loads(path.read_text())
    row = logged(work, "mIoU")[4]
    assert row["mIoU"] == scores["mIoU"] and row["aAcc"] == scores["aAcc"]
