"""What train.py and test.py do with their flags, in this process."""

import contextlib
import io
import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from PIL import Image
from torch import nn

from mmseg_ext.commands._launch import one_message
from mmseg_ext.commands.test import main as test
from mmseg_ext.commands.test import parser as test_parser
from mmseg_ext.commands.test import runner_of as scoring_runner
from mmseg_ext.commands.train import main as train
from mmseg_ext.commands.train import parser as train_parser
from mmseg_ext.commands.train import runner_of
from tests.engine.runs import ROOT, free_port, recorded, run, write_config

# Not tests, though imported under names that look so.
test.__test__ = False
test_parser.__test__ = False


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """The launcher's variables are the test's own."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever the tool sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))


@pytest.fixture
def _one_process_of_torchrun(monkeypatch):
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def built(*arguments: str | Path):
    return runner_of(train_parser().parse_args([str(a) for a in arguments]))


def log_text(work_dir: Path) -> str:
    return "".join(path.read_text() for path in sorted(work_dir.glob("*/*.log")))


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
        train([str(write_config(folder, hook)), "--work-dir", str(folder / "work"), "--resume"])
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
    assert "System environment:" in written and "Config:" in written
    assert "Hooks will be executed in the following order" in written


def test_resume_prefers_the_own_work_directory_to_a_configs_load_from(trained, tmp_path):
    """A fine-tuning config names the weights it starts from; resuming it must not restart there."""
    start = str(trained / "work/iter_4.pth")
    resume = [write_config(tmp_path, f"load_from = {start!r}\n"), "--work-dir", tmp_path / "work"]
    resume.append("--resume")
    fresh = built(*resume)
    assert (fresh._load_from, fresh._resume) == (start, False)

    latest = shutil.copy(trained / "work/iter_8.pth", tmp_path / "work")
    resumed = built(*resume)
    assert (resumed._load_from, resumed._resume) == (None, True)
    named = built(*resume, "--cfg-options", f"load_from={latest}")
    assert (named._load_from, named._resume) == (str(latest), True)

    Path(latest).write_bytes(b"")
    (tmp_path / "work/last_checkpoint").write_text(str(tmp_path / "iter_9.pth"))
    message = fails(train, *resume)
    missing = tmp_path / "work" / "iter_9.pth"
    assert f"last_checkpoint names '{missing}', which is not there" in message
    assert "--cfg-options load_from=FILE" in message


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


@pytest.mark.parametrize("tool", ["train", "test"])
def test_the_launchers_name_a_port_in_use_and_no_processes(tool):
    words = ["config.py", *["weights.pth"] * (tool == "test")]
    script = ROOT / f"tools/dist_{tool}.sh"
    for count in ("0", "two"):
        result = run(script, *words, count)
        assert result.returncode == 2 and f"at least 1, not '{count}'" in result.stderr
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        result = run(script, *words, "2", PORT=port)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and f"the port {port} is in use" in result.stderr


@pytest.mark.usefixtures("_one_process_of_torchrun")
def test_sync_bn_trains_in_one_process_and_is_refused_under_gloo(tmp_path, monkeypatch):
    config = write_config(tmp_path)
    text = config.read_text().replace('type="GN", num_groups=4', 'type="SyncBN"')
    config.write_text(text)
    message = fails(train, config, "--work-dir", tmp_path / "work", "--launcher", "pytorch")
    assert "model_wrapper_cfg: ValueError: SyncBatchNorm layers only work with GPU" in message
    assert not torch.distributed.is_initialized()
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    words = [config, "--work-dir", tmp_path / "alone", "--cfg-options", "train_cfg.max_iters=1"]
    runner = built(*words)
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

    class Watch(Hook):
        def after_train(self, runner):
            threads.extend(gloo_threads())

    words = ["--work-dir", tmp_path / "work", "--launcher", "pytorch", "--cfg-options"]
    with one_message():
        runner = built(write_config(tmp_path), *words, "train_cfg.max_iters=1")
        runner.register_hook(Watch())
        runner.train()
        del runner
    assert threads
    assert not gloo_threads()


def gloo_threads() -> list[str]:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU makes the messages different")
def test_launchers_that_did_not_start_the_process(tmp_path, monkeypatch):
    words = [write_config(tmp_path), "--work-dir", tmp_path / "work", "--launcher"]
    for launcher in ("pytorch", "mpi"):
        message = fails(train, *words, launcher)
        assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set" in message
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SLURM_NODELIST", "n[1-2]")
    message = fails(train, *words, "slurm")
    assert "`scontrol show hostnames n[1-2]` names no host" in message and "MASTER_ADDR" in message
    # Of several tasks of a machine one prints the message, known by Slurm's own numbers.
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    with pytest.raises(SystemExit) as exit_:
        train(["/nowhere.py", "--launcher", "slurm"])
    assert exit_.value.code == 1
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("5", "1")


@pytest.mark.parametrize(
    ("key", "value", "scratch"),
    [
        ("model.pretrained", "/nowhere/weights.pth", "model.pretrained=None"),
        (
            "model.backbone.init_cfg.checkpoint",
            "http://127.0.0.1:9/weights.pth",
            "model.backbone.init_cfg=None",
        ),
        ("load_from", "open-mmlab://no_such_model", "name a local file"),
    ],
)
def test_weights_that_cannot_be_read_end_in_one_message(tmp_path, key, value, scratch):
    options = [f"{key}={value}"]
    if "init_cfg" in key:
        options.append("model.backbone.init_cfg.type=Pretrained")
    words = [write_config(tmp_path), "--work-dir", tmp_path / "work", "--cfg-options", *options]
    message = fails(train, *words)
    assert f"{key}={value!r} cannot be loaded (" in message
    assert scratch in message


def test_wrong_paths_and_flags(trained, tmp_path, capsys):
    config = write_config(tmp_path)
    broken, file = tmp_path / "broken.py", tmp_path / "file"
    broken.write_text("model = dict(\n")
    file.write_text("")
    work = ["--work-dir", tmp_path / "work"]
    assert "there is no file '/nowhere.py'" in fails(train, "/nowhere.py")
    assert "there is no file '/nowhere.pth'" in fails(test, config, "/nowhere.pth", *work)
    assert f"config {broken}: SyntaxError" in fails(train, broken, *work)
    assert f"{file}/work: Not a directory" in fails(train, config, "--work-dir", file / "work")
    message = fails(train, config, *work, "--cfg-options", "optim_wrapper.optimizer.lr.a=1")
    assert message.startswith("mmseg_ext: --cfg-options")
    no_views = write_config(tmp_path, "del tta_pipeline\ndel auto_scale_lr\n", "no_views.py")
    checkpoint = trained / "work/iter_12.pth"
    assert "no tta_pipeline" in fails(test, no_views, checkpoint, *work, "--tta")
    assert "base_batch_size" in fails(train, no_views, *work, "--auto-scale-lr")
    for argument in ("--no-such-flag", "--cfg-options lr"):
        with pytest.raises(SystemExit) as exit_:
            train(["config.py", *argument.split()])
        assert exit_.value.code == 2
        assert argument.split()[-1] in capsys.readouterr().err


def test_broken_data_ends_in_one_message(tmp_path):
    """Also where a worker reads them."""
    checked = "load[1] = dict(type='CheckedLoadAnnotations', num_classes=3)\n"
    text = checked + "train_dataloader['num_workers'] = 1\n"
    config, path = write_config(tmp_path, text), tmp_path / "data/labels/0.png"
    Image.new("L", (32, 32), 7).save(path)
    message = fails(train, config, "--work-dir", tmp_path / "work")
    expected = "values outside the 3 classes: 7 (1024 pixels); legal are 0 to 2 and 255"
    assert message == f"mmseg_ext: data: {path}: {expected}"


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
    assert len(list((tmp_path / "out").glob("*.png"))) == 8
    assert len(list((tmp_path / "show").rglob("*.png"))) == 8

    runner = scoring_runner(test_parser().parse_args([*words, str(tmp_path / "tta"), "--tta"]))
    assert type(runner.model).__name__ == "StreamingSegTTAModel"
    assert 0 < runner.test()["mIoU"] <= 100
