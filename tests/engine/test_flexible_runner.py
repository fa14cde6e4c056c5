"""mmengine's FlexibleRunner through the tools: one device, DDP, and what it cannot do."""

import errno
import json
import os

import pytest
import torch

from mmseg_ext.checkpoint.safe_reading import read_checkpoint
from mmseg_ext.commands.test import main as test
from mmseg_ext.commands.train import main as train
from tests.engine.runs import recorded, run_tool, write_config
from tests.engine.states import UNVALIDATED

test.__test__ = False

FLEXIBLE = "runner_type=FlexibleRunner"
EVERY_4 = "train_cfg.val_interval=4"


def losses(folder, name):
    return f"custom_hooks = [dict(type='RecordLoss', path={str(folder / name)!r})]\n"


def miou(config, checkpoint, folder, *options):
    name = f"visualizer.name={folder.name}"  # visualizers are one per name and process
    flags = ["--work-dir", str(folder), "--cfg-options", name, *options]
    test([str(config), str(checkpoint), *flags])
    (path,) = folder.glob("2*/2*.json")
    return json.loads(path.read_text())["mIoU"]


@pytest.mark.slow
@pytest.mark.distributed
def test_one_device_and_two_processes_train_as_the_durable_runner(tmp_path, monkeypatch):
    """Losses and weights; the run resumes after a validation and leaves no iteration out."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    config = write_config(tmp_path, losses(tmp_path, "durable"), "durable.py")
    train([str(config), "--work-dir", str(tmp_path / "durable_work")])
    durable = recorded(tmp_path / "durable.0")

    config = write_config(tmp_path, losses(tmp_path, "one"), "one.py")
    work = ["--work-dir", str(tmp_path / "one_work")]
    options = ["--cfg-options", FLEXIBLE, EVERY_4]
    train([str(config), *work, *options, "train_cfg.max_iters=8", "visualizer.name=one"])
    train([str(config), *work, "--resume", *options, "visualizer.name=resumed"])
    assert recorded(tmp_path / "one.0") == durable

    five = "val_dataloader['dataset'] = {**dataset, 'indices': 5}\n"  # one process has two of them
    config = write_config(tmp_path, losses(tmp_path, "two") + five, "two.py")
    work = ["--work-dir", tmp_path / "two_work", "--cfg-options", FLEXIBLE, EVERY_4]
    processes = ["strategy.type=DDPStrategy", "train_dataloader.batch_size=2"]
    result = run_tool("train.py", config, *work, *processes, ranks=2)
    assert result.returncode == 0, result.stderr[-2000:]
    first, second = (recorded(tmp_path / f"two.{rank}") for rank in (0, 1))
    halves = {i: (first[i] + second[i]) / 2 for i in durable}
    assert halves == pytest.approx(durable, rel=1e-4)

    scores = []
    for name in ("durable", "one", "two"):
        checkpoint = tmp_path / f"{name}_work" / "iter_12.pth"
        assert read_checkpoint(checkpoint)["meta"]["iter"] == 12
        scores.append(miou(config, checkpoint, tmp_path / f"{name}_tested"))
    assert scores[0] == scores[1] > 0
    assert miou(config, checkpoint, tmp_path / "flexible", FLEXIBLE) == scores[2]
    (path,) = (tmp_path / "two_work").glob("2*/vis_data/scalars.json")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["mIoU"] for row in rows if "mIoU" in row][-1] == pytest.approx(scores[2], rel=1e-6)


def fails(config, work, *options, resume=True):
    flags = ["--resume"] if resume else []
    options = [FLEXIBLE, f"visualizer.name={len(options)}{options[-1]}", *options]
    with pytest.raises(SystemExit) as end:
        train([str(config), "--work-dir", str(work), *flags, "--cfg-options", *options])
    assert "\n" not in end.value.code
    return end.value.code


def test_nothing_is_lost_with_a_broken_file_a_full_disk_or_another_models_weights(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("LOCAL_RANK", "0")
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    train(
        [str(config), "--work-dir", str(work), "--cfg-options", FLEXIBLE, "train_cfg.max_iters=8"]
    )
    whole, newest = (work / f"iter_{i}.pth" for i in (4, 8))
    content = whole.read_bytes()
    newest.write_bytes(content[: len(content) // 2])

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        keep = "default_hooks.checkpoint.max_keep_ckpts=1"
        message = fails(config, work, "train_cfg.max_iters=8", keep)
    assert f"{newest}: No space left on device" in message
    assert whole.read_bytes() == content
    text = "".join(path.read_text() for path in work.glob("2*/*.log"))
    assert f"{newest}" in text and "taking the checkpoint before it" in text
    assert "resumed epoch: 0, iter: 4" in text

    other = read_checkpoint(whole)
    other["state_dict"] = {k: v for k, v in other["state_dict"].items() if "conv_seg" not in k}
    torch.save(other, tmp_path / "other.pth")
    message = fails(config, work, f"load_from={tmp_path / 'other.pth'}")
    assert "decode_head.conv_seg.bias" in message and "another model's" in message


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model_wrapper_cfg.type=FullyShardedModel", "strategy.model_wrapper"),
        ("sync_bn=torch", "strategy.sync_bn"),
        ("compile=True", "runner_type='DurableRunner'"),
        ("strategy.type=DDPStrategy", "tools/dist_train.sh"),
        ("optim_wrapper.optimizer.type=ZeroRedundancyOptimizer", "runner_type='DurableRunner'"),
        ("custom_hooks.0.type=EMAHook", "runner_type='DurableRunner'"),
        ("strategy.type=DeepSpeedStrategy", "deepspeed.runtime.fp16.onebit"),
    ],
)
def test_what_it_cannot_do_is_one_line_that_names_the_remedy(tmp_path, option, message):
    config = write_config(tmp_path, "custom_hooks = [dict(type='SignalInValidation')]\n")
    line = fails(config, tmp_path / "work", option, resume=False)
    assert message in line
    assert option.split("=")[0].split(".")[0] in line


def test_another_runner_refuses_a_strategy(tmp_path):
    config, option = write_config(tmp_path), "strategy.type=DDPStrategy"
    line = fails(config, tmp_path / "work", "runner_type=DurableRunner", option, resume=False)
    assert "strategy: only FlexibleRunner has one" in line
