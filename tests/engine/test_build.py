"""train.py and test.py with their flags, in this process."""

import contextlib
import io
import json
import multiprocessing
import pickle
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch
from mmengine import dist
from mmengine.hooks import LoggerHook
from mmengine.logging import MMLogger
from mmseg.engine.hooks import SegVisualizationHook
from mmseg.evaluation.metrics import iou_metric
from PIL import Image
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext import runs
from mmseg_ext.commands import clean_end, run
from mmseg_ext.commands import test as scoring
from mmseg_ext.durable.work_dir import on_rank_zero  # two ranks in one process
from mmseg_ext.engine import build, distributed
from mmseg_ext.engine.amp import bfloat16_autocast
from mmseg_ext.engine.build import build_test_runner, build_train_runner
from mmseg_ext.engine.config import load_config  # as the commands read a config
from mmseg_ext.errors import LaunchError, RunError
from tests.configs import CONFIGS
from tests.engine.runs import (
    built,
    fails,
    free_port,
    log_text,
    train_here,
    train_words,
    write_config,
)
from tests.engine.states import logged
from tests.messages import check_message, lines_with


@pytest.fixture
def _one_process_of_torchrun(monkeypatch):
    given = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in given.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Train 12 iterations, and return the folder of the work directory and the terminal's text."""
    folder = tmp_path_factory.mktemp("trained")
    MMLogger._instance_dict.clear()
    with (folder / "terminal").open("w") as terminal, contextlib.redirect_stdout(terminal):
        option = "optim_wrapper.paramwise_cfg.norm_decay_mult=1"  # each parameter has a log line
        words = train_words(write_config(folder), folder / "work", option, flags=("--resume",))
        assert run("train", words) == 0
    return folder


def test_train_writes_checkpoints_and_prints_progress(trained):
    """Also with --resume, if there is nothing to resume. Only the log file has all lines."""
    work = trained / "work"
    kept = {p.name for p in work.glob("*.pth")}
    assert kept == {"iter_4.pth", "iter_8.pth", "iter_12.pth", "best_mIoU_iter_12.pth"}
    written = log_text(work)
    assert re.search(r"Iter\(train\) \[ *6/12\].* eta: \d+:\d\d:\d\d ", written)
    assert "System environment:" in written and "paramwise_options" in written
    assert "Hooks will be executed in the" in written
    terminal = (trained / "terminal").read_text()
    for warning in ("The draw is False", "``avg_non_ignore``", '"FileClient" will be deprecated'):
        assert warning in written and warning not in terminal
    shown = terminal.partition("iteration  1/12")[0]
    assert shown.count("\n") <= 14, shown
    assert re.search(r"model: \w+ of ResNetV1c, FCNHead; 0\.19 M parameters", shown)
    assert "; float32; seed 0" in shown
    best = work / "best_mIoU_iter_12.pth"
    assert lines_with(terminal, "best checkpoint, with a score of", best)
    for command in ("test", "image_demo IMAGE", "export"):  # with the options of this training
        assert lines_with(terminal, f"mmseg-ext {command} {work / 'tiny.py'} {best}")
    assert lines_with(terminal, f"mmseg-ext report {work}")
    assert ", 8 images" in shown and "from 0 to 12 iterations" in shown and str(trained) in shown


def test_the_printed_checkpoint_has_the_printed_score(tmp_path, capsys):
    """Also of several best ones, in a folder that is not the work directory."""
    work, kept = tmp_path / "work", tmp_path / "kept/work"
    changes = ["train_cfg.max_iters=4", "train_cfg.val_interval=2"]
    changes += ["default_hooks.checkpoint.save_best=[mIoU,mAcc]"]
    changes += [f"default_hooks.checkpoint.out_dir={kept.parent}"]
    train_here(write_config(tmp_path), work, *changes)
    printed = capsys.readouterr().out
    (line,) = lines_with(printed, "best checkpoint, with a score of")
    path = Path(line.rpartition(": ")[2])
    assert path.parent == kept and path.name.startswith("best_mIoU_iter_")
    content = torch.load(path, weights_only=True)
    score = content["message_hub"]["runtime_info"]["best_score_mIoU"]
    assert f" {score:.4g}: " in line
    assert lines_with(printed, f"mmseg-ext report {work}")


def test_mmengines_runner_prints_few_lines(tmp_path):
    """The configs of others have no `runner_type`."""
    config = load_config(str(write_config(tmp_path)))
    config.pop("runner_type")
    config.dump(tmp_path / "others.py")
    with contextlib.redirect_stdout(io.StringIO()) as terminal:
        build_train_runner(str(tmp_path / "others.py"), None, str(tmp_path / "work"))
    assert "System environment:" in log_text(tmp_path / "work")
    assert len(terminal.getvalue().splitlines()) <= 3, terminal.getvalue()


def starts_from(*words: str | Path) -> tuple[str | None, bool]:
    runner = built(*words)
    return runner._load_from, runner._resume  # mmengine has no other names for them


def test_resume_prefers_the_work_directory_to_a_configs_load_from(trained, tmp_path, monkeypatch):
    """`load_from` in a fine-tuning config has the weights that it starts from.

    In a file that also has `resume=True`, it is the checkpoint to resume, as in mmengine.

    A restarted run resumes without the flag, and also prefers its work directory to the option.
    """
    start, own = str(trained / "work/iter_4.pth"), (None, True)
    words = [write_config(tmp_path, f"load_from = {start!r}\n"), "--work-dir", tmp_path / "work"]
    resume, option = [*words, "--resume"], ["--cfg-options", f"load_from={start}"]
    both = write_config(tmp_path, f"load_from = {start!r}\nresume = True\n", "both.py")
    both = [both, "--work-dir", tmp_path / "work"]
    assert starts_from(*both) == starts_from(*both, "--resume") == (start, True)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert starts_from(*resume) == starts_from(*words, *option) == (start, False)
    shutil.copy(trained / "work/iter_8.pth", tmp_path / "work")
    assert starts_from(*words, *option) == own
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    assert starts_from(*resume) == own and starts_from(*resume, *option) == (start, True)
    assert starts_from(*both) == (start, True) and starts_from(*both, "--resume") == own
    assert starts_from(*words) == starts_from(*words, *option) == (start, False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert starts_from(*words, *option) == own

    with monkeypatch.context() as patch:  # a rank that does not see the file yet follows rank 0
        patch.setattr(build, "find_checkpoints", lambda _: ([], []))
        patch.setattr(build, "on_rank_zero", lambda action: action() or True)
        assert starts_from(*resume) == own

    for name in ("iter_4.pth", "iter_8.pth"):
        (tmp_path / "work" / name).write_bytes(b"")
    (tmp_path / "work/last_checkpoint").write_text(str(tmp_path / "iter_9.pth"))
    missing, message = f"{tmp_path}/iter_9.pth", fails("train", *resume)
    parts = (missing, f"{str(tmp_path / 'work')!r}", "iter_4.pth", "iter_8.pth")
    check_message(message, "last_checkpoint", *parts, todo="--cfg-options load_from=FILE")


def gloo_threads() -> int:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]  # on Linux
    return sum("gloo" in name for name in names)


@pytest.mark.usefixtures("_one_process_of_torchrun")
def test_a_group_on_the_cpu_trains_sync_bn_as_bn(tmp_path):
    """With one warning; gradients of a save within an accumulation are gathered over gloo.

    A thread of gloo that outlives the run could abort the process.
    """
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace('type="GN", num_groups=4', 'type="SyncBN"'))
    options = ["train_cfg.max_iters=1", "find_unused_parameters=True"]
    words = train_words(config, tmp_path / "work", "optim_wrapper.accumulative_counts=2", *options)
    new_group, groups = torch.distributed.new_group, []
    with pytest.MonkeyPatch.context() as patch, clean_end():
        runner = built(*words, "--launcher", "pytorch")
        assert runner.model.find_unused_parameters
        cfg = load_config(str(config), launcher="pytorch")
        distributed.init_distributed(cfg)
        default = {"broadcast_buffers": False, "find_unused_parameters": False}  # as mmengine's
        default["gradient_as_bucket_view"] = True
        assert cfg.model_wrapper_cfg == {"type": "CPUDistributedDataParallel", **default}
        norms = [m for m in runner.model.modules() if isinstance(m, _BatchNorm)]
        assert norms and not any(isinstance(m, nn.SyncBatchNorm) for m in norms)
        before = norms[0].running_mean.clone()
        patch.setattr(dist, "get_backend", lambda: "nccl")
        patch.setattr(torch.distributed, "all_gather_object", None)  # to all ranks, over nccl
        patch.setattr(
            torch.distributed, "new_group", lambda **k: groups.append(k) or new_group(**k)
        )
        runner.train()
        assert not torch.equal(norms[0].running_mean, before)
        runner.save_checkpoint(str(tmp_path), "now.pth", by_epoch=False)
        assert gloo_threads() > 0 or not Path("/proc/self/task").is_dir()
        del runner
    assert groups == [{"backend": "gloo"}]
    assert len(torch.load(tmp_path / "now.pth", weights_only=True)["processes"]) == 1
    assert len(lines_with(log_text(tmp_path / "work"), "WARNING", "norm_cfg:", "SyncBN", "BN")) == 1
    assert not torch.distributed.is_initialized() and gloo_threads() == 0


@pytest.mark.usefixtures("_one_process_of_torchrun")
def test_nccl_gets_a_store_for_each_start(tmp_path, monkeypatch):
    """After a restart torchrun's store still contains the unique id of the dead processes."""
    cfg, calls = load_config(str(write_config(tmp_path)), launcher="pytorch"), mock.Mock()
    monkeypatch.setattr(distributed, "get_device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", calls.set_device)
    monkeypatch.setattr(torch.distributed, "init_process_group", calls.init)
    monkeypatch.setenv("LOCAL_RANK", "2")
    cfg.env_cfg.dist_cfg.timeout = 60
    found = torch.distributed.HashStore(), 0, 1
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda _: iter([found]))
    stores = []
    for start in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", start)
        distributed.init_distributed(cfg)
        before, (_, (backend,), settings) = calls.mock_calls[-2:]
        assert before == mock.call.set_device(2)
        assert (backend, settings["timeout"].seconds) == ("nccl", 60)
        stores.append(settings["store"])
        stores[-1].set("id", start)
    assert stores[0].get("id") == b"0"
    wrapper = {"broadcast_buffers": False, "find_unused_parameters": False}  # mmengine's type
    assert cfg.model_wrapper_cfg == {**wrapper, "gradient_as_bucket_view": True}


@pytest.mark.parametrize("error", [LaunchError("x"), OSError(28, "full")])
def test_every_error_of_rank_0_reaches_the_other_ranks(monkeypatch, error):
    sent = []

    def broadcast(values):
        if rank == 0:
            sent.append(pickle.dumps(values))
        else:
            values[:] = pickle.loads(sent[-1])

    monkeypatch.setattr(dist, "broadcast_object_list", broadcast)
    monkeypatch.setattr(dist, "is_main_process", lambda: rank == 0)
    for rank in range(2):
        expected = RunError if rank and isinstance(error, OSError) else type(error)
        with pytest.raises(expected):
            on_rank_zero(mock.Mock(side_effect=error))
    for rank in range(2):
        assert on_rank_zero(lambda r=rank: 7 + r) == 7  # only rank 0 calls it


@pytest.mark.parametrize(
    ("length", "option", "interval"),
    [(12, None, 1), (90, None, 2)] + [(4000, None, 50), (90, 7, 7)],
)
def test_a_short_run_logs_forty_losses(tmp_path, length, option, interval):
    """An interval on the command line stays."""
    options = {"train_cfg.max_iters": length}
    if option:
        options["default_hooks.logger.interval"] = option
    config = write_config(tmp_path, 'default_hooks["logger"] = dict(interval=50)\n')
    runner = build_train_runner(str(config), options, str(tmp_path / "work"))
    (hook,) = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
    assert hook.interval == interval


def test_out_exists_before_a_rank_writes(trained, tmp_path, monkeypatch):
    """mmsegmentation's metric creates the folder on rank 0 only."""
    monkeypatch.setattr(iou_metric, "is_main_process", lambda: False)
    objects = 'dict(type="ObjectMetric", object_class="b")'  # writes no label maps
    settings = f"test_evaluator = [val_evaluator, {objects}]\n"
    config, out = write_config(tmp_path, settings), tmp_path / "a/b"
    words = [str(config), str(trained / "work/iter_12.pth")]
    for _ in range(2):
        runner = build_test_runner(*words, work_dir=str(tmp_path), out=str(out))
        assert out.is_dir() and type(runner.model).__name__ == "StripEncoderDecoder"
    given, _ = runner.cfg.test_evaluator  # as of mmsegmentation's test.py
    assert (given.output_dir, given.keep_results) == (str(out), True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train {config} --launcher pytorch", "MASTER_ADDR, MASTER_PORT are not set"),
        ("train {config} --launcher slurm", "MASTER_ADDR are not set"),
        ("train {broken}", "config {broken}: SyntaxError"),
        ("train {config} --work-dir {broken}/work", "{broken}/work: Not a directory"),
        ("train {bare} --auto-scale-lr", "base_batch_size"),
        ("train {bare} --amp", "--amp"),
        ("train {config} --cfg-options model.pretrained=/no.pth", "model.pretrained=None"),
        ("train {config} --cfg-options load_from=http://127.0.0.1:9/a.pth", "name a local file"),
        ("test {config} /nowhere.pth", "there is no file '/nowhere.pth'"),
        ("test {bare} {weights} --tta", "--tta"),
        ("test {bare} {weights} --show-dir a", "--show-dir"),
        ("test {config} {weights} --out {broken}", "{broken}: File exists"),
    ],
)
def test_runs_that_cannot_start_end_in_one_line(trained, tmp_path, monkeypatch, words, told):
    monkeypatch.delenv("SLURM_NODELIST", raising=False)
    monkeypatch.chdir(tmp_path)
    removed = "del tta_pipeline, auto_scale_lr\ndefault_hooks['visualization'] = None\n"
    removed += "optim_wrapper = dict(_delete_=True, constructor='Own', one=dict(), two=dict())\n"
    places = {"config": write_config(tmp_path), "weights": trained / "work/iter_12.pth"}
    places |= {"broken": tmp_path / "broken.py", "bare": write_config(tmp_path, removed, "bare.py")}
    places["broken"].write_text("model = dict(\n")
    tool, *words = words.format(**places).split()
    assert told.format(**places) in fails(tool, *words)


def test_options_are_tuples_where_the_config_has_one_and_texts_keep_their_spaces(tmp_path):
    words = ["a.b.1.size=7,8", "a.c=1,2", "new=3,4"]
    words += ["data_root=/my data/(a) 1", "best='IoU.traffic light'", "names=[a, b]", "rate= 0.5"]
    namespace = scoring.parser().parse_args(["config.py", "a.pth", "--cfg-options", *words])
    (tmp_path / "config.py").write_text("a = dict(b=[0, dict(size=(1, 2))], c=[0])\n")
    cfg = load_config(str(tmp_path / "config.py"), namespace.cfg_options)
    assert cfg.a.b[1].size == (7, 8) and cfg.a.c == [1, 2] and cfg.new == [3, 4]
    assert cfg.data_root == "/my data/(a) 1" and cfg.best == "IoU.traffic light"
    assert cfg["names"] == ["a", "b"] and cfg.rate == 0.5


def test_the_message_about_mmseg_bases_has_a_working_path(tmp_path):
    """For `mmseg::` mmengine looks only for the original distribution."""
    config, base = tmp_path / "c.py", "_base_/models/fcn_r50-d8.py"
    config.write_text(f"_base_ = ['mmseg::{base}']\n")
    message = fails("train", config, "--work-dir", tmp_path)
    config.write_text(re.search(r"_base_ = .*", message)[0].replace("...", base))
    assert load_config(str(config)).model.decode_head.type == "FCNHead"


def test_broken_labels_end_in_one_line(tmp_path):
    """Also if a worker reads them."""
    checked = "load[1] = dict(type='CheckedLoadAnnotations', num_classes=3)\n"
    text = checked + "train_dataloader['num_workers'] = 1\n"
    config, path = write_config(tmp_path, text), tmp_path / "data/labels/0.png"
    Image.new("L", (32, 32), 7).save(path)
    message = fails("train", config, "--work-dir", tmp_path / "work")
    assert message.startswith(f"mmseg_ext: {path}: ")
    assert "7 (1024 pixels)" in message


def test_test_and_tta(trained, tmp_path):
    """test.py repeats the validation's mIoU, writes predictions and images, and runs --tta."""
    words = [str(trained / "tiny.py"), str(trained / "work/iter_12.pth"), "--work-dir"]
    drawn = ["--out", str(tmp_path / "out"), "--show-dir", str(tmp_path / "show"), "--cfg-options"]
    drawn += ["default_hooks.visualization.interval=1"]
    drawn += ["test_dataloader.num_workers=1", "test_dataloader.persistent_workers=True"]
    assert run("test", [*words, str(tmp_path / "plain"), *drawn]) == 0
    assert not multiprocessing.active_children() and (tmp_path / "plain/tiny.py").is_file()
    (metrics,) = (json.loads(p.read_text()) for p in (tmp_path / "plain").glob("2*/2*.json"))
    (results,) = (json.loads(p.read_text()) for p in (tmp_path / "plain").glob("2*/results.json"))
    assert (results["split"], results["views"]) == (str(trained / "data/images"), 1)
    assert lines_with(log_text(tmp_path / "plain"), "test: 8 images", results["split"])
    validated = logged(trained / "work", "mIoU")[12]
    assert metrics["mIoU"] == pytest.approx(validated["mIoU"], rel=1e-6)
    for kind in ("out", "show"):
        assert len(list((tmp_path / kind).rglob("*.png"))) == 8

    words += [str(tmp_path / "tta"), "--tta"]
    own = [*words, "--show", "--wait-time", "3", "--cfg-options", "tta_model.type=SegTTAModel"]
    words += ["--show-dir", str(tmp_path / "tta_show")]  # which opens no windows
    for given, kind, shown in ((own, "SegTTAModel", 3), (words, "StreamingSegTTAModel", 0)):
        settings = scoring.arguments(scoring.parser().parse_args(given))
        assert not settings.pop("amp")
        runner = build_test_runner(**settings)
        assert type(runner.model).__name__ == kind
        (hook,) = (h for h in runner.hooks if isinstance(h, SegVisualizationHook))
        assert hook.draw and (hook.show, hook.wait_time) == (bool(shown), shown)
    assert 0 < runner.test()["mIoU"] <= 100
    (results,) = (json.loads(p.read_text()) for p in (tmp_path / "tta").glob("2*/results.json"))
    assert results["views"] == 4


@pytest.mark.parametrize("is_durable", [True, False])
def test_the_config_of_a_training_outlasts_a_test(trained, tmp_path, is_durable):
    """The commands at the end of the training name it."""
    config = load_config(str(trained / "tiny.py"))
    if not is_durable:
        config.pop("runner_type")
        config.default_hooks.pop("checkpoint")  # of the durable runner
    config.dump(tmp_path / "own.py")
    work = tmp_path / "work"
    work.mkdir()
    (work / "own.py").write_text("size = 64\n")
    checkpoint = str(trained / "work/iter_12.pth")
    (work / "last_checkpoint").write_text(checkpoint)
    for tta in (True, False):
        build_test_runner(str(tmp_path / "own.py"), checkpoint, None, str(work), tta=tta).test()
    assert (work / "own.py").read_text() == "size = 64\n"


def test_test_in_bfloat16(trained, tmp_path, monkeypatch):
    """The score is close to float32's; other processors refuse it."""
    words = [str(trained / "tiny.py"), str(trained / "work/iter_12.pth"), "--work-dir"]
    build, dtypes = runs.build_test_runner, []

    def recorded(*args):
        runner = build(*args)
        head = runner.model.decode_head.conv_seg
        head.register_forward_hook(lambda *given: dtypes.append(given[2].dtype))
        return runner

    monkeypatch.setattr(runs, "build_test_runner", recorded)
    try:
        scoring.main([*words, str(tmp_path / "half"), "--amp"])
    except LaunchError as error:
        pytest.skip(str(error))
    scoring.main([*words, str(tmp_path / "single")])
    assert set(dtypes[: len(dtypes) // 2]) == {torch.bfloat16} and dtypes[-1] == torch.float32
    half, single = (
        json.loads(next((tmp_path / name).glob("2*/2*.json")).read_text())["mIoU"]
        for name in ("half", "single")
    )
    assert half == pytest.approx(single, abs=2)


def test_amp_is_refused_where_it_is_slow():
    with pytest.raises(LaunchError, match="amp"):
        bfloat16_autocast(torch.device("meta"))
    with bfloat16_autocast(torch.device("meta"), enabled=False):
        pass


def test_configs_have_a_name_or_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ea_r18_shapes").mkdir()  # as in work_dirs
    by_name = load_config("ea_r18_shapes")
    assert by_name.to_dict() == load_config(str(CONFIGS / "ea_r18_shapes.py")).to_dict()
    assert by_name.work_dir == "./work_dirs/ea_r18_shapes"


@pytest.mark.parametrize("place", ["", "20260101_000000", "20260101_000000/vis_data"])
@pytest.mark.parametrize("written", ["absolute", "relative"])
def test_the_data_of_a_copied_run_is_in_the_copy(written, place, tmp_path, monkeypatch, capsys):
    """The work directory is next to the data, and was named from another folder."""
    old, new = tmp_path / "old", tmp_path / "deeper/new"
    monkeypatch.chdir(tmp_path)
    (old / "run" / place).mkdir(parents=True)
    (old / "data").mkdir()
    (tmp_path / "weights.pth").touch()
    work = str(old / "run") if written == "absolute" else "old/run"
    text = f"work_dir = {work!r}\nload_from = {str(tmp_path / 'weights.pth')!r}\n"
    text += f"parts = [dict(data_root={str(old / 'data')!r})]\n"
    file = Path("run", place, "config.py")
    (old / file).write_text(text)
    (old / "other.py").write_text(text)
    log = old / "run/20260101_000000"
    log.mkdir(exist_ok=True)
    record = {"config": "project/config.py", "folder": str(old / "run")}
    (log / "run.json").write_text(json.dumps(record))
    assert load_config(str(old / file)).parts[0].data_root == str(old / "data")
    new.parent.mkdir()
    shutil.copytree(old, new)
    assert not capsys.readouterr().err
    copied = load_config(str(new / file))
    assert copied.parts[0].data_root == str(new / "data")
    assert copied.work_dir == str(new / "run")
    assert copied.load_from == str(tmp_path / "weights.pth")  # it did not move
    check_message(capsys.readouterr().err.splitlines()[0], new / file, old / "run", new / "data")
    # Only the work directory is copied: its data stayed. And a user's config is not of the run.
    shutil.copytree(old / "run", tmp_path / "alone")
    alone = load_config(str(tmp_path / "alone" / place / "config.py"))
    assert alone.parts[0].data_root == str(old / "data")
    (new / "run/other.py").write_text(text)
    assert load_config(str(new / "run/other.py")).work_dir == work
    # Nobody knows whether a run with a damaged record has moved; its config loads.
    (new / "run/20260101_000000/run.json").write_text("{cut")
    capsys.readouterr()
    load_config(str(new / file))
    assert lines_with(capsys.readouterr().err, "run.json", "damaged", "delete")


@pytest.mark.parametrize("place", ["", "20260101_000000", "20260101_000000/vis_data"])
@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_the_config_of_a_run_follows_its_project(move, place, tmp_path, capsys):
    """It has absolute paths, and would read and write the folder of an earlier place."""
    old, new = tmp_path / "old", tmp_path / "a/new"
    other = f"{tmp_path}/old_weights/a.pth"
    old.mkdir()
    text = f'work_dir = "{{{{ fileDirname }}}}/work_dir"\nload_from = "{other}"\n'
    text += 'parts = [dict(data_root="{{ fileDirname }}/data")]\n'
    (old / "config.py").write_text(text)
    file = Path("work_dir", place, "config.py")
    (old / file).parent.mkdir(parents=True)
    load_config(str(old / "config.py")).dump(old / file)
    before = load_config(str(old / file))
    assert before.work_dir == str(old / "work_dir") and not capsys.readouterr().err
    new.parent.mkdir()
    move(old, new)
    after = load_config(str(new / file), {"load_from": "b.pth"})
    assert after.work_dir == str(new / "work_dir")
    assert after.parts[0].data_root == str(new / "data")
    assert after.load_from == "b.pth" and load_config(str(new / file)).load_from == other
    check_message(capsys.readouterr().err.splitlines()[0], old, new)
    assert load_config(str(new / file), work_dir="x").work_dir == "x"
    inner = new / "work_dir"  # a project of this name in another project
    (inner / "config.py").write_text(text)
    assert load_config(str(inner / "config.py")).work_dir == str(inner / "work_dir")
