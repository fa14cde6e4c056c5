"""What train.py and test.py do with their flags, in this process."""

import contextlib
import errno
import io
import json
import logging
import re
import shutil
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from PIL import Image
from torch import nn

from mmseg_ext.commands._launch import exit_on_run_error
from mmseg_ext.commands.test import main as test
from mmseg_ext.commands.test import parser as test_parser
from mmseg_ext.commands.test import runner_of as scoring_runner
from mmseg_ext.commands.train import main as train
from mmseg_ext.commands.train import parser as train_parser
from mmseg_ext.commands.train import runner_of
from mmseg_ext.engine.launch import load_settings
from tests.engine.runs import free_port, log_text, recorded, train_here, train_words, write_config

# Not tests, though imported under names that look so.
test.__test__ = False
test_parser.__test__ = False


@pytest.fixture
def _one_process_of_torchrun(monkeypatch):
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def built(*arguments: str | Path):
    return runner_of(train_parser().parse_args([str(a) for a in arguments]))


def fails(function, *arguments: str | Path) -> str:
    """The message with which a tool ends, which must be one line."""
    with pytest.raises(SystemExit) as exit_:
        function([str(a) for a in arguments])
    message = exit_.value.code
    assert isinstance(message, str)
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The work directory of 12 iterations, undisturbed: checkpoints and the recorded losses."""
    folder = tmp_path_factory.mktemp("trained")
    hook = f"custom_hooks = [dict(type='RecordLoss', path={str(folder / 'loss')!r})]\n"
    MMLogger._instance_dict.clear()
    with contextlib.redirect_stdout(io.StringIO()) as terminal:
        train_here(write_config(folder, hook), folder / "work", flags=("--resume",))
    (folder / "terminal").write_text(terminal.getvalue())
    return folder


def test_train_writes_checkpoints_the_best_one_and_a_progress_line(trained):
    """With --resume, too, where there is nothing to resume."""
    work = trained / "work"
    kept = {p.name for p in work.glob("*.pth")}
    assert kept == {"iter_4.pth", "iter_8.pth", "iter_12.pth", "best_mIoU_iter_12.pth"}
    assert re.search(r"Iter\(train\) \[ *6/12\].* eta: 0:00:0\d ", log_text(work))
    assert list(recorded(trained / "loss.0")) == [*range(1, 13)]


def test_ten_lines_stand_on_the_terminal_before_the_first_iteration(trained):
    """The log file has all that mmengine says."""
    shown = (trained / "terminal").read_text().partition("Iter(train)")[0]
    assert shown.count("\n") <= 14, shown
    assert re.search(r"model: \w+ of ResNetV1c, FCNHead; 0\.19 M parameters", shown)
    assert ", 8 images" in shown and "from 0 to 12 iterations" in shown and str(trained) in shown
    written = log_text(trained / "work")
    assert "System environment:" in written and "Hooks will be executed in the" in written


def test_resume_prefers_the_own_work_directory_to_a_configs_load_from(trained, tmp_path):
    """A fine-tuning config names the weights it starts from; resuming it must not restart there."""
    start = str(trained / "work/iter_4.pth")
    resume = [write_config(tmp_path, f"load_from = {start!r}\n"), "--work-dir", tmp_path / "work"]
    resume.append("--resume")
    fresh = built(*resume)
    assert (fresh._load_from, fresh._resume) == (start, False)

    shutil.copy(trained / "work/iter_8.pth", tmp_path / "work")
    resumed = built(*resume)
    assert (resumed._load_from, resumed._resume) == (None, True)
    named = built(*resume, "--cfg-options", f"load_from={start}")
    assert (named._load_from, named._resume) == (start, True)

    (tmp_path / "work/iter_8.pth").write_bytes(b"")
    (tmp_path / "work/last_checkpoint").write_text(str(tmp_path / "iter_9.pth"))
    missing, message = tmp_path / "work/iter_9.pth", fails(train, *resume)
    assert f"last_checkpoint names '{missing}', which is not there" in message


def test_auto_scale_lr(tmp_path):
    """The batch that counts is the effective one; without the flag another batch is a warning."""
    words = [write_config(tmp_path), "--cfg-options", "optim_wrapper.accumulative_counts=3"]

    def rate(*flags: str) -> float:
        MMLogger._instance_dict.clear()  # loggers are kept by name, which holds the second
        runner = built(*words, "--work-dir", tmp_path / f"work{len(flags)}", *flags)
        wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        runner.scale_lr(wrapper, runner.auto_scale_lr)
        return wrapper.optimizer.param_groups[0]["lr"]

    assert rate("--auto-scale-lr") == pytest.approx(0.3)
    line = "configured batch 4, effective batch 12, learning rate x 3"
    assert line in log_text(tmp_path / "work1")
    assert rate() == 0.1
    line = "WARNING - the learning rate is meant for another batch"
    assert line in log_text(tmp_path / "work0")
    words.append("train_dataloader.batch_size=2")
    words[2] = "optim_wrapper.accumulative_counts=2"
    assert rate("--auto-scale-lr", "--amp") == pytest.approx(0.1)
    assert line not in log_text(tmp_path / "work2")


@pytest.mark.usefixtures("_one_process_of_torchrun")
def test_sync_bn_trains_in_one_process_and_is_refused_under_gloo(tmp_path, monkeypatch):
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace('type="GN", num_groups=4', 'type="SyncBN"'))
    message = fails(train, config, "--work-dir", tmp_path / "work", "--launcher", "pytorch")
    assert "model_wrapper_cfg: ValueError: SyncBatchNorm layers only work with GPU" in message
    assert not torch.distributed.is_initialized()
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    runner = built(*train_words(config, tmp_path / "alone", "train_cfg.max_iters=1"))
    layers = [m for m in runner.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    before = layers[0].running_mean.clone()
    runner.train()
    assert not torch.equal(layers[0].running_mean, before)


@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed on Linux")
@pytest.mark.usefixtures("_one_process_of_torchrun")
def test_no_thread_of_gloo_outlives_a_run(tmp_path):
    """One that releases a tensor after the interpreter's end aborts a finished run's process."""
    threads = []

    def gloo_threads(runner=None) -> int:
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        threads.append(sum("gloo" in name for name in names))
        return threads[-1]

    hook = Hook()
    hook.after_train = gloo_threads
    words = ["--work-dir", tmp_path / "work", "--launcher", "pytorch", "--cfg-options"]
    with exit_on_run_error():
        runner = built(write_config(tmp_path), *words, "train_cfg.max_iters=1")
        runner.register_hook(hook)
        runner.train()
        del runner
    assert threads[0] > 0 and gloo_threads() == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU makes the messages different")
def test_launchers_that_did_not_start_the_process(tmp_path, monkeypatch):
    words = [write_config(tmp_path), "--work-dir", tmp_path / "work", "--launcher"]
    message = fails(train, *words, "pytorch")
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set" in message
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SLURM_NODELIST", "n[1-2]")
    message = fails(train, *words, "slurm")
    assert "`scontrol show hostnames n[1-2]` names no host" in message and "MASTER_ADDR" in message


@pytest.mark.parametrize(
    ("key", "value", "scratch"),
    [
        ("model.pretrained", "/nowhere/weights.pth", "model.pretrained=None"),
        ("load_from", "http://127.0.0.1:9/weights.pth", "name a local file"),
    ],
)
def test_weights_that_cannot_be_read_end_in_one_line(tmp_path, key, value, scratch):
    words = [write_config(tmp_path), "--work-dir", tmp_path / "work"]
    message = fails(train, *words, "--cfg-options", f"{key}={value}")
    assert f"{key}={value!r} cannot be loaded (" in message
    assert scratch in message


def test_wrong_paths_and_flags(trained, tmp_path):
    config, broken, file = write_config(tmp_path), tmp_path / "broken.py", tmp_path / "file"
    broken.write_text("model = dict(\n")
    file.write_text("")
    work = ["--work-dir", tmp_path / "work"]
    assert "there is no file '/nowhere.pth'" in fails(test, config, "/nowhere.pth", *work)
    assert f"config {broken}: SyntaxError" in fails(train, broken, *work)
    assert f"{file}/work: Not a directory" in fails(train, config, "--work-dir", file / "work")
    no_views = write_config(tmp_path, "del tta_pipeline\ndel auto_scale_lr\n", "no_views.py")
    checkpoint = trained / "work/iter_12.pth"
    assert "no tta_pipeline" in fails(test, no_views, checkpoint, *work, "--tta")
    assert "base_batch_size" in fails(train, no_views, *work, "--auto-scale-lr")


def test_the_path_of_the_message_names_mmsegs_bases(tmp_path):
    """With `mmseg::` mmengine looks for the original distribution, whatever mmseg there is."""
    config, base = tmp_path / "c.py", "_base_/models/fcn_r50-d8.py"
    config.write_text(f"_base_ = ['mmseg::{base}']\n")
    message = fails(train, config, "--work-dir", tmp_path)
    config.write_text(re.search(r"_base_ = .*", message)[0].replace("...", base))
    assert load_settings(str(config)).model.decode_head.type == "FCNHead"


def test_broken_data_ends_in_exit_on_run_error(tmp_path):
    """Also where a worker reads them."""
    checked = "load[1] = dict(type='CheckedLoadAnnotations', num_classes=3)\n"
    text = checked + "train_dataloader['num_workers'] = 1\n"
    config, path = write_config(tmp_path, text), tmp_path / "data/labels/0.png"
    Image.new("L", (32, 32), 7).save(path)
    message = fails(train, config, "--work-dir", tmp_path / "work")
    expected = "values outside the 3 classes: 7 (1024 pixels); legal are 0 to 2 and 255"
    assert message == f"mmseg_ext: data: {path}: {expected}"


class _Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_on_a_full_disk_prints_no_trace(capsys):
    logger = logging.Logger("full")
    logger.addHandler(logging.StreamHandler(_Full()))
    with pytest.raises(SystemExit) as end, exit_on_run_error():
        logger.warning("the config, in hundreds of lines")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "No space left on device; the checkpoints written before" in end.value.code
    assert capsys.readouterr().err == ""


def test_test_and_tta(trained, tmp_path):
    """test.py gives the validation's mIoU, writes predictions and pictures, and runs --tta."""
    words = [str(trained / "tiny.py"), str(trained / "work/iter_12.pth"), "--work-dir"]
    drawn = ["--out", str(tmp_path / "out"), "--show-dir", str(tmp_path / "show"), "--cfg-options"]
    drawn.append("default_hooks.visualization.interval=1")
    drawn.append("visualizer.name=shown")  # visualizers are one per name and process
    test([*words, str(tmp_path / "plain"), *drawn])
    (metrics,) = (json.loads(p.read_text()) for p in (tmp_path / "plain").glob("2*/2*.json"))
    rows = (trained / "work").glob("2*/vis_data/scalars.json")
    validated = [json.loads(line) for p in rows for line in p.read_text().splitlines()]
    expected = [r for r in validated if "mIoU" in r][-1]["mIoU"]
    assert metrics["mIoU"] == pytest.approx(expected, rel=1e-6)
    for kind in ("out", "show"):
        assert len(list((tmp_path / kind).rglob("*.png"))) == 8

    runner = scoring_runner(test_parser().parse_args([*words, str(tmp_path / "tta"), "--tta"]))
    assert type(runner.model).__name__ == "StreamingSegTTAModel"
    assert 0 < runner.test()["mIoU"] <= 100
