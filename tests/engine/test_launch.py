"""What train.py and test.py do with their flags, in this process."""

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

SHORT = ["train_cfg.max_iters=1", "train_cfg.val_interval=1"]

# Not tests, though imported under names that look so.
test.__test__ = False
test_parser.__test__ = False


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """The launcher's variables are the test's own."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))


def train_args(*arguments: str | Path):
    return train_parser().parse_args([str(a) for a in arguments])


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
    config = write_config(
        folder, f"custom_hooks = [dict(type='RecordLoss', path={str(folder / 'loss')!r})]\n"
    )
    train([str(config), "--work-dir", str(folder / "work")])
    return folder


def weights(work_dir: Path, iteration: int) -> dict:
    return torch.load(work_dir / f"iter_{iteration}.pth", weights_only=True)["state_dict"]


def test_train_writes_checkpoints_the_best_one_and_a_progress_line(trained):
    work = trained / "work"
    kept = {p.name for p in work.glob("*.pth")}
    assert kept == {"iter_4.pth", "iter_8.pth", "iter_12.pth", "best_mIoU_iter_12.pth"}
    assert re.search(r"Iter\(train\) \[ *6/12\].* eta: 0:00:0\d ", log_text(work))
    assert min(recorded(trained / "loss.0")) == 1


def test_resume_in_an_empty_work_directory_starts_anew(tmp_path):
    hook = f"custom_hooks = [dict(type='RecordLoss', path={str(tmp_path / 'loss')!r})]\n"
    config = write_config(tmp_path, hook)
    options = ["--cfg-options", *SHORT]
    train([str(config), "--work-dir", str(tmp_path / "work"), "--resume", *options])
    assert list(recorded(tmp_path / "loss.0")) == [1]


def test_resume_prefers_the_own_work_directory_to_a_configs_load_from(trained, tmp_path):
    """A fine-tuning config names the weights it starts from; resuming it must not restart there."""
    start = str(trained / "work/iter_4.pth")
    config = write_config(tmp_path, f"load_from = {start!r}\n")
    fresh = runner_of(train_args(config, "--work-dir", tmp_path / "work", "--resume"))
    assert (fresh._load_from, fresh._resume) == (start, False)

    latest = shutil.copy(trained / "work/iter_8.pth", tmp_path / "work")
    args = train_args(config, "--work-dir", tmp_path / "work", "--resume")
    resumed = runner_of(args)
    assert (resumed._load_from, resumed._resume) == (None, True)

    args = train_args(
        config, "--work-dir", tmp_path / "work", "--resume", "--cfg-options", f"load_from={latest}"
    )
    named = runner_of(args)
    assert (named._load_from, named._resume) == (str(latest), True)

    Path(latest).write_bytes(b"")
    (tmp_path / "work/last_checkpoint").write_text(str(tmp_path / "iter_9.pth"))
    message = fails(train, config, "--work-dir", tmp_path / "work", "--resume")
    missing = tmp_path / "work" / "iter_9.pth"
    assert f"last_checkpoint names '{missing}', which is not there" in message
    assert "--cfg-options load_from=FILE" in message


@pytest.mark.parametrize(
    ("batch", "accumulated", "factor"), [(4, 1, 1.0), (2, 1, 0.5), (2, 2, 1.0), (4, 3, 3.0)]
)
def test_auto_scale_lr(tmp_path, batch, accumulated, factor):
    config = write_config(tmp_path)
    options = [
        "--cfg-options",
        f"train_dataloader.batch_size={batch}",
        f"optim_wrapper.accumulative_counts={accumulated}",
    ]
    effective = batch * accumulated
    scaled = runner_of(
        train_args(config, "--work-dir", tmp_path / "on", "--auto-scale-lr", *options)
    )
    wrapper = scaled.build_optim_wrapper(scaled.optim_wrapper)
    scaled.scale_lr(wrapper, scaled.auto_scale_lr)
    assert wrapper.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)
    line = f"configured batch 4, effective batch {effective}, learning rate x {factor:g}"
    assert line in log_text(tmp_path / "on")

    MMLogger._instance_dict.clear()  # loggers are kept by name, which holds the second of the start
    plain = runner_of(train_args(config, "--work-dir", tmp_path / "off", *options))
    wrapper = plain.build_optim_wrapper(plain.optim_wrapper)
    plain.scale_lr(wrapper, plain.auto_scale_lr)
    assert wrapper.optimizer.param_groups[0]["lr"] == 0.1
    warned = "WARNING - the learning rate is meant for another batch" in log_text(tmp_path / "off")
    assert warned == (factor != 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs it")
def test_mmengines_mixed_precision_needs_a_gpu(tmp_path):
    config = write_config(tmp_path, "optim_wrapper['type'] = 'AmpOptimWrapper'\n")
    message = fails(train, config, "--work-dir", tmp_path / "work")
    assert "'AmpOptimWrapper' needs a GPU" in message and "PortableAmpOptimWrapper" in message


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


def test_cfg_options_change_what_is_built(tmp_path):
    config = write_config(tmp_path)
    runner = runner_of(
        train_args(
            config,
            "--work-dir",
            tmp_path / "work",
            "--cfg-options",
            "model.decode_head.channels=12",
            "optim_wrapper.optimizer.lr=0.5",
        )
    )
    assert runner.model.decode_head.conv_seg.in_channels == 12
    assert runner.build_optim_wrapper(runner.optim_wrapper).optimizer.param_groups[0]["lr"] == 0.5


def test_sync_bn_config_trains_unchanged_in_one_process(tmp_path):
    config = write_config(tmp_path)
    options = ["model.backbone.norm_cfg.type=SyncBN", "model.decode_head.norm_cfg.type=SyncBN"]
    text = config.read_text().replace('type="GN", num_groups=4', 'type="SyncBN"')
    config.write_text(text)
    runner = runner_of(
        train_args(config, "--work-dir", tmp_path / "work", "--cfg-options", *SHORT, *options)
    )
    layers = [m for m in runner.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert not any(isinstance(m, nn.SyncBatchNorm) for m in layers)
    assert len(layers) > 10
    before = layers[0].running_mean.clone()
    runner.train()
    assert not torch.equal(layers[0].running_mean, before)


@pytest.fixture
def _one_process_of_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", free_port())


@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed on Linux")
@pytest.mark.usefixtures("_one_process_of_torchrun")
def test_no_thread_of_gloo_outlives_a_run(tmp_path):
    """One that releases a tensor after the interpreter's end aborts a finished run's process."""
    threads = []

    class Watch(Hook):
        def after_train(self, runner):
            threads.extend(gloo_threads())

    args = train_args(write_config(tmp_path), "--work-dir", tmp_path / "work")
    args.launcher, args.cfg_options = "pytorch", {"train_cfg.max_iters": 1}
    with one_message():
        runner = runner_of(args)
        runner.register_hook(Watch())
        runner.train()
        del runner
    assert threads
    assert not gloo_threads()


def gloo_threads() -> list[str]:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


@pytest.mark.usefixtures("_one_process_of_torchrun")
def test_sync_bn_under_gloo_ends_in_one_message(tmp_path):
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace('type="GN", num_groups=4', 'type="SyncBN"'))
    message = fails(train, config, "--work-dir", tmp_path / "work", "--launcher", "pytorch")
    assert "SyncBatchNorm layers (the first: backbone.stem.1)" in message
    assert "type='BN'" in message
    assert not torch.distributed.is_initialized()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU makes the messages different")
def test_flags_that_need_a_launcher(tmp_path):
    config = write_config(tmp_path)
    work = ["--work-dir", tmp_path / "work"]
    message = fails(train, config, *work, "--launcher", "pytorch")
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set" in message
    assert "needs GPUs" in fails(train, config, *work, "--launcher", "mpi")
    message = fails(train, config, *work, "--launcher", "slurm")
    assert "SLURM_PROCID, SLURM_LOCALID and SLURM_NTASKS are not all set" in message


@pytest.mark.usefixtures("_one_process_of_torchrun")
def test_a_slurm_job_whose_first_machine_is_unknown_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR")
    for name, value in (("PROCID", "0"), ("LOCALID", "0"), ("NTASKS", "2"), ("NODELIST", "n[1-2]")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", "")
    arguments = [write_config(tmp_path), "--work-dir", tmp_path / "work", "--launcher", "slurm"]
    message = fails(train, *arguments)
    assert "`scontrol show hostnames n[1-2]` names no host; set MASTER_ADDR" in message


def test_one_slurm_task_of_a_machine_says_what_is_wrong(monkeypatch):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever the tool sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    with pytest.raises(SystemExit) as exit_:
        train(["/nowhere.py", "--launcher", "slurm"])
    assert exit_.value.code == 1
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("5", "1")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_LOCALID", "0")
    assert "there is no file '/nowhere.py'" in fails(train, "/nowhere.py", "--launcher", "slurm")


def test_amp_takes_the_plain_wrapper_alone(tmp_path):
    config = write_config(tmp_path, "optim_wrapper['type'] = 'ApexOptimWrapper'\n")
    message = fails(train, config, "--work-dir", tmp_path / "work", "--amp")
    assert "OptimWrapper, but got ApexOptimWrapper" in message


@pytest.mark.parametrize(
    ("key", "value", "scratch"),
    [
        ("model.pretrained", "/nowhere/weights.pth", "model.pretrained=None"),
        (
            "model.backbone.init_cfg.checkpoint",
            "http://127.0.0.1:9/weights.pth",
            "model.backbone.init_cfg=None",
        ),
        (
            "model.backbone.init_cfg.checkpoint",
            "open-mmlab://no_such_model",
            "model.backbone.init_cfg=None",
        ),
        ("load_from", "/nowhere/weights.pth", None),
    ],
)
def test_missing_weights_end_in_one_message_before_data_is_read(tmp_path, key, value, scratch):
    config = write_config(tmp_path, "train_dataloader['dataset']['data_root'] = '/nowhere'\n")
    options = [f"{key}={value}"]
    if "init_cfg" in key:
        options.append("model.backbone.init_cfg.type=Pretrained")
    message = fails(train, config, "--work-dir", tmp_path / "work", "--cfg-options", *options)
    assert f"{key}: " in message
    assert repr(value) in message
    assert f"--cfg-options {key}=FILE" in message
    assert scratch is None or f"--cfg-options {scratch}" in message


def test_training_starts_from_the_named_weights_and_from_scratch_with_none(trained, tmp_path):
    """The two remedies of the message do what it says."""
    init = "model['backbone']['init_cfg'] = dict(type='Pretrained', checkpoint='/nowhere.pth')\n"
    config = write_config(tmp_path, init)
    source = weights(trained / "work", 12)
    backbone = {k.removeprefix("backbone."): v for k, v in source.items() if "backbone" in k}
    torch.save(backbone, tmp_path / "backbone.pth")
    key = "model.backbone.init_cfg"
    for option, loaded in (
        (f"{key}.checkpoint={tmp_path / 'backbone.pth'}", True),
        (f"{key}=None", False),
    ):
        args = train_args(config, "--work-dir", tmp_path / "work", "--cfg-options", option)
        runner = runner_of(args)
        runner._init_model_weights()
        state = runner.model.backbone.state_dict()
        assert all(torch.equal(state[k], v) for k, v in backbone.items()) == loaded


def test_wrong_paths_and_options(trained, tmp_path):
    config = write_config(tmp_path)
    broken = tmp_path / "broken.py"
    broken.write_text("model = dict(\n")
    file = tmp_path / "file"
    file.write_text("")
    work = ["--work-dir", tmp_path / "work"]
    assert "there is no file '/nowhere.py'" in fails(train, "/nowhere.py")
    assert "there is no file '/nowhere.pth'" in fails(test, config, "/nowhere.pth", *work)
    address = "http://127.0.0.1:9/weights.pth"
    message = fails(test, config, address, *work)
    assert f"checkpoint: '{address}' cannot be fetched (" in message
    assert f"config {broken}: SyntaxError" in fails(train, broken, *work)
    assert "cannot be made" in fails(train, config, "--work-dir", file / "work")
    message = fails(train, config, *work, "--cfg-options", "optim_wrapper.optimizer.lr.a=1")
    assert message.startswith("mmseg_ext: --cfg-options")
    missing = "train_dataloader.dataset.data_prefix.img_path=absent"
    assert "data: " in fails(train, config, *work, "--cfg-options", missing)
    no_views = write_config(tmp_path, "del tta_pipeline\n", "no_views.py")
    checkpoint = trained / "work/iter_12.pth"
    assert "no tta_pipeline" in fails(test, no_views, checkpoint, *work, "--tta")
    message = fails(train, write_config(tmp_path, "del auto_scale_lr\n"), *work, "--auto-scale-lr")
    assert "base_batch_size" in message


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["images", "labels"])
def test_broken_data_ends_in_one_message(tmp_path, workers, kind):
    config = write_config(
        tmp_path,
        "train_dataloader['dataset']['pipeline'] = [dict(type='CheckedLoadImage'),"
        "dict(type='CheckedLoadAnnotations', num_classes=3), dict(type='PackSegInputs')]\n",
    )
    path = tmp_path / "data" / kind / "0.png"
    if kind == "images":
        path.write_bytes(b"")
        expected = f"{path}: is empty (0 bytes)"
    else:
        Image.new("L", (32, 32), 7).save(path)
        expected = (
            f"{path}: values outside the 3 classes: 7 (1024 pixels); legal are 0 to 2 and 255"
        )
    options = [*SHORT, f"train_dataloader.num_workers={workers}"]
    message = fails(train, config, "--work-dir", tmp_path / "work", "--cfg-options", *options)
    assert message == f"mmseg_ext: data: {expected}"


@pytest.mark.parametrize("argument", ["--no-such-flag", "--cfg-options lr"])
def test_wrong_flags_are_usage_errors(argument, capsys):
    with pytest.raises(SystemExit) as exit_:
        train(["config.py", *argument.split()])
    assert exit_.value.code == 2
    assert argument.split()[-1] in capsys.readouterr().err


def test_test_and_tta(trained, tmp_path):
    """test.py gives the validation's mIoU, writes predictions and pictures, and runs --tta."""
    config, checkpoint = trained / "tiny.py", trained / "work/iter_12.pth"
    plain = ["--work-dir", str(tmp_path / "plain")]
    drawn = ["--out", str(tmp_path / "out"), "--show-dir", str(tmp_path / "show")]
    test(
        [
            str(config),
            str(checkpoint),
            *plain,
            *drawn,
            "--cfg-options",
            "default_hooks.visualization.interval=1",
            "visualizer.name=shown",  # visualizers are one per name and process
        ]
    )
    (metrics,) = (json.loads(p.read_text()) for p in (tmp_path / "plain").glob("2*/2*.json"))
    rows = (trained / "work").glob("2*/vis_data/scalars.json")
    validated = [json.loads(line) for p in rows for line in p.read_text().splitlines()]
    expected = [r for r in validated if "mIoU" in r][-1]["mIoU"]
    assert metrics["mIoU"] == pytest.approx(expected, rel=1e-6)
    assert len(list((tmp_path / "out").glob("*.png"))) == 8
    assert len(list((tmp_path / "show").rglob("*.png"))) == 8

    args = [str(config), str(checkpoint), "--work-dir", str(tmp_path / "tta"), "--tta"]
    runner = scoring_runner(test_parser().parse_args(args))
    assert type(runner.model).__name__ == "StreamingSegTTAModel"
    metrics = runner.test()
    assert 0 < metrics["mIoU"] <= 100
    assert "LOCAL_RANK" in os.environ
