"""No path on which weights are loaded runs code from them; each load says how much it fills."""

import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.runner.checkpoint import CheckpointLoader
from mmseg.apis import MMSegInferencer, init_model
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS
from torch import nn

import mmseg_ext
from mmseg_ext.checkpoint.files import read_checkpoint, write_weights
from mmseg_ext.checkpoint.safe_loading import (
    check_coverage,
    load_and_report,
    random_parts,
    safe_loading,
)
from mmseg_ext.commands import export
from mmseg_ext.commands import test as scoring
from mmseg_ext.engine.build import build_test_runner
from mmseg_ext.errors import CheckpointError
from tests.checkpoint.test_plain_data import Pickled
from tests.engine.runs import fails, log_text, train_here, train_words, write_config
from tests.engine.states import UNVALIDATED, assert_same
from tests.messages import check_message, lines_with, raises_message, resumed_iterations


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("safe")
    config = write_config(folder, UNVALIDATED)
    train_here(config, folder / "work", "train_cfg.max_iters=1")
    return folder


@pytest.fixture
def good(folder):
    return read_checkpoint(folder / "work/iter_1.pth")


@pytest.fixture
def armed(good, tmp_path):
    """A checkpoint whose weights are right and whose meta runs code when unpickled."""
    good["meta"]["note"] = Pickled(os.mkdir, str(tmp_path / "proof"))
    torch.save(good, tmp_path / "armed.pth")
    torch.load(tmp_path / "armed.pth", weights_only=False)
    (tmp_path / "proof").rmdir()  # the payload works
    return tmp_path / "armed.pth"


@MODELS.register_module()
class Loading(EncoderDecoder):
    """A segmentor whose constructor loads weights by mmengine, as in knowledge distillation."""

    def __init__(self, *args, checkpoint: str, **kwargs):
        super().__init__(*args, **kwargs)
        CheckpointLoader.load_checkpoint(checkpoint)


def ways(config: Path, path: Path, work: Path) -> dict:
    """Each way to load the file `path`, from the command line or from Python."""
    init = "model.backbone.init_cfg"
    pretrained = (f"{init}.type=Pretrained", f"{init}.checkpoint={path}")
    inits = dict(word.split("=") for word in pretrained)
    stock = {"runner_type": "Runner", "default_hooks.checkpoint.type": "CheckpointHook"}
    loading = {"type": "Loading", "checkpoint": str(path)}
    return {
        "load_from": lambda: train_here(config, work, f"load_from={path}"),
        "resume": lambda: train_here(config, work, f"load_from={path}", flags=("--resume",)),
        "init_cfg": lambda: train_here(config, work, *pretrained),
        "test.py": lambda: scoring.main([str(config), str(path), "--work-dir", str(work)]),
        "train": lambda: mmseg_ext.train(config, work, options={"load_from": str(path), **stock}),
        "init_cfg in train": lambda: mmseg_ext.train(config, work, options={**inits, **stock}),
        "test": lambda: mmseg_ext.test(config, path, work, options=stock),
        "constructor": lambda: mmseg_ext.get_model(config, **loading),
        "constructor in train": lambda: mmseg_ext.train(
            config, work, options={"model.checkpoint": str(path), "model.type": "Loading"}
        ),
        "export": lambda: export.main([str(config), str(path), "--out", str(work / "a.onnx")]),
        "inference": lambda: mmseg_ext.get_model(config, weights=path),
        "init_model": lambda: init_model(str(config), str(path), device="cpu"),
    }


@pytest.mark.parametrize("way", ways(*[Path()] * 3))
def test_a_payload_does_not_run(folder, armed, tmp_path, way):
    context = mmseg_ext.safe_loading() if way == "init_model" else nullcontext()
    with context, pytest.raises(CheckpointError) as refusal:
        ways(folder / "tiny.py", armed, tmp_path / "work")[way]()
    assert str(armed) in str(refusal.value)
    assert not (tmp_path / "proof").exists()


def test_a_payload_does_not_run_in_the_process_of_a_report(folder, armed, capfd):
    unwanted = shutil.ignore_patterns("*.pth", "last_checkpoint")
    shutil.copytree(folder / "work", armed.parent, ignore=unwanted, dirs_exist_ok=True)
    with raises_message(ValueError, where=armed.parent, todo=True):
        mmseg_ext.report([armed.parent], evaluate=True)
    assert lines_with(capfd.readouterr().err, armed, "posix.mkdir")
    assert not armed.with_name("proof").exists()


def test_fetched_files_are_read_as_safely(armed, tmp_path, monkeypatch):
    """Downloads, and objects of a storage service, which mmengine reads as open files."""
    data = armed.read_bytes()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("MMENGINE_HOME", str(tmp_path))
    download = lambda url, path, *_, **__: Path(path).write_bytes(data)  # noqa: E731
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    service = SimpleNamespace(get=lambda _: data)
    monkeypatch.setattr(mmengine_checkpoint, "get_file_backend", lambda *_, **__: service)
    (tmp_path / "open_mmlab.json").write_text(json.dumps({"armed": str(armed)}))
    for address in ("open-mmlab://resnet18_v1c", "open-mmlab://armed", "s3://armed.pth"):
        with mmseg_ext.safe_loading(), raises_message(CheckpointError, "posix.mkdir", todo=True):
            CheckpointLoader.load_checkpoint(address)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(("stem", "told"), [("deep", ["stem"]), ("plain", [])])
def test_a_part_that_stays_random_is_a_warning(stem, told, capsys):
    """As with torchvision's weights in a ResNetV1c. Norms may be missing."""
    kind = {"type": "LambdaResNet", "lambda_stages": (), "depth": 50}
    weights = MODELS.build(dict(kind)).state_dict()
    del weights["layer1.0.bn1.weight"]
    backbone = MODELS.build(kind | {"stem": stem})
    assert random_parts(backbone, weights) == told
    segmentor = nn.ModuleDict({"backbone": backbone, "decode_head": nn.Conv2d(1, 1, 1)})
    weights = {f"backbone.{name}": value for name, value in weights.items()}
    assert random_parts(segmentor, weights) == [f"backbone.{name}" for name in told]
    assert random_parts(segmentor, {}) == []
    load_and_report(segmentor, weights)
    warned = bool(lines_with(capsys.readouterr().out, "WARNING", "backbone.stem:"))
    assert warned == bool(told)


def test_what_others_do_and_allow_is_unchanged(armed, tmp_path, monkeypatch):
    """A hook may unpickle its own files during a run. One variable turns the protection off."""
    torch.serialization.add_safe_globals([os.mkdir])
    try:
        with raises_message(CheckpointError, "posix.mkdir", where=armed, todo=True):
            read_checkpoint(armed)
        assert torch.serialization.get_safe_globals().count(os.mkdir) == 1
    finally:
        torch.serialization.clear_safe_globals()
    assert not (tmp_path / "proof").exists()
    with mmseg_ext.safe_loading():
        assert "note" in torch.load(armed, weights_only=False)["meta"]
        (tmp_path / "proof").rmdir()
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        assert CheckpointLoader.load_checkpoint(str(armed))["meta"].keys() >= {"note", "iter"}
    assert (tmp_path / "proof").exists()


def test_configs_in_a_checkpoint_are_not_executed(folder, good, tmp_path):
    """Resuming executes meta['config'] in mmengine, an inferencer the others."""
    program = f"import os\nos.mkdir({str(tmp_path / 'proof')!r})\n"
    good["meta"]["config"] = good["meta"]["cfg"] = program
    good["message_hub"]["runtime_info"]["cfg"] = program
    path = tmp_path / "program.pth"
    good["meta"]["iter"] = 0
    torch.save(good, path)
    options, work = (f"load_from={path}", "train_cfg.max_iters=1"), tmp_path / "work"
    train_here(folder / "tiny.py", work, *options, flags=("--resume",))
    assert (work / "iter_1.pth").is_file()
    with pytest.raises(ValueError, match="config"), mmseg_ext.safe_loading():
        MMSegInferencer(model=None, weights=str(path), device="cpu")
    assert not (tmp_path / "proof").exists()


def test_safetensors_wherever_a_checkpoint_is(folder, good, tmp_path):
    path, config = tmp_path / "weights.safetensors", folder / "tiny.py"
    dataset_meta = {"classes": ["a", "b", "c"], "palette": [[0, 0, 0], [1, 2, 3], [4, 5, 6]]}
    shared = {**good["state_dict"], "decode_head.conv_seg.bias": torch.zeros(1).expand(3)}
    assert write_weights(shared, path, dataset_meta, about={"mIoU": "60"}) == path
    read = read_checkpoint(write_weights(shared, tmp_path / "weights.pth", about={"mIoU": "60"}))
    assert_same(read, {"state_dict": shared, "meta": {"mIoU": "60"}})
    with mmseg_ext.safe_loading():
        model = init_model(str(config), str(path), device="cpu")
        content = CheckpointLoader.load_checkpoint(str(path))
        assert content["state_dict"].keys() == shared.keys()
    assert_same(dict(model.state_dict()), shared)
    assert model.dataset_meta == dataset_meta
    with raises_message(ValueError, ".pth", ".safetensors", where=tmp_path / "weights.bin"):
        write_weights(shared, tmp_path / "weights.bin")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=str(path)):
        read_checkpoint(path)


def test_checkpoints_of_mmengines_runner_are_read_and_resumed(tmp_path):
    """By its own Runner and by ours, without unpickling."""
    config, path = write_config(tmp_path), tmp_path / "work/iter_2.pth"
    stock = ["runner_type=Runner", "default_hooks.checkpoint.type=CheckpointHook"]
    stock += ["default_hooks.checkpoint.interval=2", "train_cfg.val_interval=2"]
    train_here(config, path.parent, *stock, "train_cfg.max_iters=2")
    read, theirs = read_checkpoint(path), torch.load(path, weights_only=False)
    for key in ("state_dict", "optimizer"):
        assert_same(read[key], theirs[key])
    for name, options in (("stock", stock), ("ours", [])):
        options = (*options, f"load_from={path}", "train_cfg.max_iters=3")
        train_here(config, tmp_path / name, *options, flags=("--resume",))
        assert resumed_iterations(log_text(tmp_path / name))[-1] == 2


def test_too_little_of_a_backbone_is_refused_unless_told_otherwise(folder, good, tmp_path, capsys):
    config, path = folder / "tiny.py", tmp_path / "half.pth"
    weights = good["state_dict"]
    half = {k: v for k, v in weights.items() if "layer4" not in k}
    torch.save({"state_dict": half, "meta": {}}, path)
    kept = sum(v.numel() for k, v in half.items() if k.startswith("backbone."))
    share = kept / sum(v.numel() for k, v in weights.items() if k.startswith("backbone."))
    assert share < 0.9
    work = tmp_path / "work"
    message = fails("train", *train_words(config, work, f"load_from={path}"))
    check_message(message, f"{share:.1%}", todo="min_backbone_share=0")
    assert "layer4.0." in message
    with mmseg_ext.safe_loading(min_backbone_share=0):
        init_model(str(config), str(path), device="cpu")
    told = ("min_backbone_share=0", "train_cfg.max_iters=1")
    train_here(config, work, f"load_from={path}", *told)
    lines = lines_with(log_text(work), f"{share:.1%}")
    assert any("backbone.layer4" in line for line in lines)
    assert lines_with(capsys.readouterr().out, path)
    # Also in the file of a config that trains with mmengine's Runner.
    stock = f"runner_type = 'Runner'\nmin_backbone_share = 0\nload_from = {str(path)!r}\n"
    train_here(write_config(tmp_path, stock), tmp_path / "stock", "train_cfg.max_iters=1")


def test_a_wrong_share_at_a_resume_loses_nothing(tmp_path, monkeypatch):
    """In a relative work directory; the next resume continues."""
    monkeypatch.chdir(tmp_path)
    config, work = write_config(tmp_path, UNVALIDATED), Path("work")
    train_here(config, work, "train_cfg.max_iters=2")
    before = {path.name: path.read_bytes() for path in work.glob("*.pth")}
    options = ("train_cfg.max_iters=3", "min_backbone_share=2")
    assert "=2" in fails("train", *train_words(config, work, *options, flags=("--resume",)))
    assert list(before) == ["iter_2.pth"]
    assert {path.name: path.read_bytes() for path in work.glob("*.pth")} == before
    train_here(config, work, options[0], flags=("--resume",))
    assert resumed_iterations(log_text(work))[-1] == 2


@pytest.fixture
def segmentor():
    return nn.ModuleDict({"backbone": nn.Linear(1, 1), "decode_head": nn.Linear(1, 1)})


def test_names_without_the_prefix_fill_nothing(segmentor):
    """The known way to lose a week: a backbone's file given as the segmentor's."""
    weights, bare = segmentor.state_dict(), segmentor["backbone"].state_dict()
    with raises_message(CheckpointError, "0.0%", "90%", todo="min_backbone_share=0"):
        check_coverage(segmentor, bare)
    with mmseg_ext.safe_loading(0):
        assert lines_with(check_coverage(segmentor, bare), "0.0%")
        wrong = {k: v[None] for k, v in weights.items()}  # names right, shapes not
        assert lines_with(check_coverage(segmentor, wrong), "0.0%", "backbone.weight")
    assert lines_with(check_coverage(segmentor, weights), "100.0%")
    for share in (1.1, -1, "half"):
        told = f"min_backbone_share={share!r}"
        with pytest.raises(ValueError, match=told), mmseg_ext.safe_loading(share):
            pass


def test_a_backbone_alone_takes_its_own_names(segmentor):
    """As in a classifier of mmpretrain whose backbone returns logits."""
    del segmentor["decode_head"]
    for i, prefix in enumerate(("", "backbone.")):
        weights = {f"{prefix}weight": torch.ones(1, 1) + i, f"{prefix}bias": torch.ones(1)}
        load_and_report(segmentor, weights)
        assert segmentor["backbone"].weight.item() == 1 + i
    weights["backbone.bias"] *= torch.nan
    with raises_message(CheckpointError, "backbone.bias", todo=True):
        load_and_report(segmentor, weights)


@pytest.mark.parametrize(
    ("channels", "fitted"),
    [
        (1, [7]),
        (2, [1.5, 3]),
        (4, [0.75, 1.5, 3, 0.75]),
        (7, [3 / 7, 6 / 7, 12 / 7, 3 / 7, 6 / 7, 12 / 7, 3 / 7]),
    ],
)
def test_weights_of_three_channels_fit_other_images(channels, fitted):
    """The sum of the weights is kept; a test needs the weights of its own model."""
    model = nn.ModuleDict({"backbone": nn.Conv2d(channels, 2, 1, bias=False)})
    weights = {"backbone.weight": torch.tensor([1.0, 2.0, 4.0]).expand(2, 3)[..., None, None]}
    with (
        safe_loading(entire_model=True),
        raises_message(CheckpointError, "90%", todo="min_backbone_share=0"),
    ):
        load_and_report(model, weights)
    load_and_report(model, weights)
    assert model["backbone"].weight.flatten().tolist() == pytest.approx(2 * fitted)


@pytest.mark.parametrize("wrong", [{0: torch.ones(1)}, [torch.ones(1)]])
def test_files_without_a_state_dict(tmp_path, wrong):
    torch.save(wrong, tmp_path / "wrong.pth")
    with mmseg_ext.safe_loading(), raises_message(CheckpointError, where=tmp_path / "wrong.pth: "):
        CheckpointLoader.load_checkpoint(str(tmp_path / "wrong.pth"))


def test_weights_of_other_classes_are_for_training_to_start_from(folder, good, tmp_path):
    config, work, path = folder / "tiny.py", tmp_path / "work", tmp_path / "classes.pth"
    weights = {k: v[:2] if "conv_seg" in k else v for k, v in good["state_dict"].items()}
    torch.save({**good, "state_dict": weights}, path)
    told = "decode_head.conv_seg.weight ((2, 16, 1, 1) for (3, 16, 1, 1))"
    assert told in fails("test", config, path, "--work-dir", work)
    runner = build_test_runner(str(config), str(path), work_dir=str(work))
    with pytest.raises(CheckpointError, match=re.escape(told)):
        runner.test()
    options = (f"load_from={path}", "train_cfg.max_iters=1")
    words = train_words(config, work, *options, flags=("--resume",))
    check_message(fails("train", *words), told, todo=True)
    train_here(config, work, *options)


# Of a process: what is saved besides the weights.
CRAFTED = {
    "random state": {"random": {"python": (9, (1,) * 625, None)}},
    "shape of a gradient": {"gradients": {"decode_head.conv_seg.bias": torch.ones(1)}},
    "name of a gradient": {"gradients": {"x": torch.ones(1)}},
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_states_of_a_process_end_in_one_line(folder, good, tmp_path, name):
    good["processes"][0].update(CRAFTED[name])
    path = tmp_path / "crafted.pth"
    torch.save(good, path)
    options = (f"load_from={path}", "train_cfg.max_iters=3")
    words = train_words(folder / "tiny.py", tmp_path / "work", *options, flags=("--resume",))
    message = fails("train", *words)
    check_message(message, path, todo="load_from=FILE")


@pytest.mark.parametrize("processes", [5, {"a": 1}], ids=str)
def test_crafted_states_of_processes_are_not_read(folder, good, tmp_path, processes):
    torch.save({**good, "processes": processes}, tmp_path / "crafted.pth")
    options = (f"load_from={tmp_path / 'crafted.pth'}", "train_cfg.max_iters=3")
    train_here(folder / "tiny.py", tmp_path / "work", *options, flags=("--resume",))
    assert lines_with(log_text(tmp_path / "work"), "WARNING", tmp_path / "crafted.pth", 0, 1)
