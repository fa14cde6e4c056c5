"""The files and commands of the guides work in a clone; test_packaging.py follows others."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from subprocess import CompletedProcess

import mmseg
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from PIL import Image

from tests.commands.test_tools import write_command
from tests.datasets.trees import make_tree
from tests.engine.runs import ROOT, free_port, run, run_script, write_images
from tests.messages import lines_with

FILE = re.compile(r"^`(?P<name>[\w/.-]+)`:.*\n(?:.+\n)*\n```\w+\n(?P<text>(?s:.*?))^```$", re.M)
MMSEG = Path(mmseg.__file__).parent / ".mim"
COMMANDS = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def clone(tmp_path) -> Path:
    for name in ("configs", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def in_the_clone(words: list[str], folder: Path, **environment: str) -> CompletedProcess:
    """Run a command of a page; `PYTHONPATH=.` puts the reader's folder before the clone."""
    path = f"{folder}:{ROOT}" if "PYTHONPATH" in environment else str(ROOT)
    environment["PYTHONPATH"] = path
    if words[0] == "bash":
        return run(*words, folder=folder, **environment)
    assert words[0] == "mmseg-ext"
    return run_script(ROOT / "mmseg_ext/__main__.py", *words[1:], folder=folder, **environment)


def follow(
    guide: str, folder: Path, run: Callable = in_the_clone, section: str = "", **environment: str
) -> list[str]:
    """Write the files of the guide or of a section, run its commands, return each one's output."""
    text = (ROOT / "docs" / guide).read_text()
    if section:
        (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## )", text, re.M | re.S)
    for match in FILE.finditer(text):
        path = folder / match["name"]
        assert path.is_relative_to(folder / "my_project")
        path.parent.mkdir(exist_ok=True)
        path.write_text(match["text"])
    printed = []
    for line in "".join(COMMANDS.findall(text)).replace("\\\n", "").splitlines():
        words = shlex.split(line)
        given = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, words))
        result = run(words[len(given) :], folder, **environment, **given)
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
        printed.append(result.stdout + result.stderr)
    return printed


def test_rmt_in_a_config_of_mmdetections(clone):
    pytest.importorskip("mmdet")
    import mmseg_ext.detection.operators_in_pytorch  # noqa: F401

    _, trained = follow("detection.md", clone)
    assert "coco/bbox_mAP" in trained
    assert (clone / "data/shapes/annotations/instances_val.json").is_file()
    config = Config.fromfile(clone / "my_project/my_rcnn.py")
    with DefaultScope.overwrite_default_scope("mmdet"):
        detector = MODELS.build(config.model)
    maps = detector.extract_feat(torch.zeros(1, 3, 64, 64))
    assert [tuple(m.shape) for m in maps] == [(1, 256, n, n) for n in (16, 8, 4, 2, 1)]


# A narrow network, fewer iterations and smaller images.
THIN = """
model.pretrained=None model.backbone.base_channels=8 model.backbone.stem_channels=8
model.decode_head.in_channels=256 model.auxiliary_head.in_channels=128
"""
SHORT = """
model.data_preprocessor.size=(32,32)
train_dataloader.dataset.pipeline.2.scale=(64,48)
train_dataloader.dataset.pipeline.3.crop_size=(32,32)
train_cfg.max_iters=2 train_cfg.val_interval=2 default_hooks.checkpoint.interval=2
"""


def test_the_readmes_config_on_one_of_mmsegmentations(tmp_path):
    """Train it with mmengine's own Runner, and test the checkpoint."""
    (snippet,) = re.findall(
        r"^## Use a head in your own config\n\n```python\n(.*?)^```$",
        (ROOT / "README.md").read_text(),
        re.M | re.S,
    )
    for part in ("_base_", "fcn"):
        shutil.copytree(MMSEG / "configs" / part, tmp_path / "configs" / part)
    base = "fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py"
    (tmp_path / "configs/my_fcn.py").write_text(f"_base_ = {base!r}\n")
    (tmp_path / "configs/mine.py").write_text(snippet)
    (tmp_path / "data").mkdir()
    make_tree("cityscapes", tmp_path / "made").root.rename(tmp_path / "data/cityscapes")
    small = "test_dataloader.dataset.pipeline.1.scale=(64,48)"
    thin = ["--cfg-options", *THIN.split()]
    for words in (
        ["train.py", "configs/mine.py", *thin, f"val_{small[5:]}", *SHORT.split()],
        ["test.py", "configs/mine.py", "work_dirs/mine/iter_2.pth", *thin, small],
    ):
        result = run_script(ROOT / "tools" / words[0], *words[1:], folder=tmp_path)
        assert result.returncode == 0, result.stderr
    assert "mIoU" in result.stdout + result.stderr


def test_predictions(clone, monkeypatch, capsys):
    """The page's lines count, measure and write the nuclei of the image."""
    monkeypatch.chdir(clone)
    (clone / "demo").symlink_to(ROOT / "demo")
    page = (ROOT / "docs/prediction.md").read_text()
    names = {}
    exec("".join(re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)), names)
    nuclei, result = names["nuclei"], names["result"]
    assert f"{len(nuclei)} nuclei" in capsys.readouterr().out and 100 < len(nuclei) < 160
    nucleus = result.classes.index("nucleus")
    assert sum(found.area for found in nuclei) <= (result.labels == nucleus).sum()
    features = json.loads((clone / "nuclei.geojson").read_text())["features"]
    assert [f["properties"]["area"] for f in features] == [found.area for found in nuclei]


def test_own_dataset(clone):
    """The page's commands, and its changes of the config."""
    write_images(clone)
    (clone / "images").rename(clone / "photos")
    (clone / "labels").rename(clone / "masks")
    made, checked, _, tested, _, demo, published = follow("own_dataset.md", clone)
    assert lines_with(made, 2, "weed") and "clean" in checked and "mIoU" in tested
    assert (clone / "my_project/check/report.html").is_file()
    assert lines_with(demo, 8, "images")
    assert re.search(r"soil_crop_weed-[0-9a-f]{8}\.safetensors", published)
    page = (ROOT / "docs/own_dataset.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (clone / "program.py").write_text(program)
    result = run_script(clone / "program.py", folder=clone)
    assert result.returncode == 0, result.stderr
    assert 0 <= float(result.stdout.splitlines()[-1]) <= 100
    config = (clone / "my_project/config.py").read_text()
    diffs = re.findall(r"^```diff\n(.*?)^```$", page, re.M | re.S)
    models = []
    for diff in diffs[:2]:
        (clone / "my_project/changed.py").write_text(apply(diff, config))
        with DefaultScope.overwrite_default_scope("mmseg"):
            model = MODELS.build(Config.fromfile(clone / "my_project/changed.py").model).train()
        sample = SegDataSample(gt_sem_seg=PixelData(data=torch.zeros(1, 64, 96, dtype=torch.long)))
        batch = dict(inputs=2 * [torch.zeros(3, 64, 96)], data_samples=[sample, sample])
        losses = model(**model.data_preprocessor(batch, training=True), mode="loss")
        assert losses["decode.loss_ce"].isfinite()
        models.append(model)
    assert type(models[0].decode_head).__name__ == "MaSAHead"
    assert type(models[1].backbone).__name__ == "RMT"
    changed = apply(diffs[0], config)
    (before,) = re.findall(r"`(type=\"EAHead\",.*)` with this pyramid", page)
    for name, text in (("EAHead", before), ("JSegEAHead", ""), ("DANetEAHead", "")):
        text = text or f'type="{name}", init_cfg=None'
        other = changed.replace('type="MaSAHead", num_heads=4, init_cfg=None', text)
        (clone / "my_project/changed.py").write_text(other)
        model = MODELS.build(Config.fromfile(clone / "my_project/changed.py").model)
        assert type(model.decode_head).__name__ == name


def apply(diff: str, text: str) -> str:
    """Replace the lines of a diff with ' ' or '-' by those with ' ' or '+'."""
    old, new = ("".join(re.findall(rf"^[ {sign}](.*\n)", diff, re.M)) for sign in ("-", "+"))
    assert text.count(old) == 1
    return text.replace(old, new)


def test_own_head(clone):
    (clone / "data/shapes").mkdir(parents=True)  # an existing folder is no problem
    resolved, costs, trained, exported = follow("own_head.md", clone)
    assert "type='MaSAHead'" in resolved
    assert "| `my_masa` | 96x96 |" in costs
    assert "mIoU" in trained
    assert lines_with(exported, "100.000%")
    assert (clone / "my_head.onnx").stat().st_size > 1e6


# A narrow network without SyncBN for one iteration.
NARROW = """
model.backbone.depth=18 model.backbone.base_channels=8 model.backbone.stem_channels=8
model.backbone.init_cfg=None model.backbone.norm_cfg.type=BN
model.decode_head.in_channels=64 model.decode_head.ea_channels=16
model.decode_head.channels=16 model.decode_head.norm_cfg.type=BN
train_dataloader.batch_size=2 train_dataloader.num_workers=0
train_dataloader.persistent_workers=False test_dataloader.num_workers=0
test_dataloader.persistent_workers=False
train_cfg.max_iters=1 default_hooks.checkpoint.interval=1
"""
TASK = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def under_slurm(words: list[str], folder: Path, **environment: str) -> CompletedProcess:
    """Run one task of a job, and rename its checkpoint to the last one of the schedule."""
    result = in_the_clone(words, folder, **environment)
    if words[0] != "bash" or result.returncode:
        return result
    _, _, command = result.stdout.partition(" -u ")  # `srun` prints its arguments
    result = run_script(
        *command.split(), "--cfg-options", *NARROW.split(), folder=folder, **environment, **TASK
    )
    for name, last in (("ea_r101_voc_45k", 45_001), ("ea_r101_voc_finetune_15k", 15_001)):
        for path in (folder / "work_dirs" / name).glob("iter_1.pth"):
            path.rename(path.with_name(f"iter_{last}.pth"))
    return result


def test_voc_under_slurm(clone):
    """Train and test on a few images."""
    tree = make_tree("voc", clone / "made")
    shutil.copytree(tree.root, clone / "data/VOCdevkit/VOC2012")
    write_command(clone / "commands", "scontrol", "echo 127.0.0.1\n")
    write_command(clone / "commands", "srun", 'echo "$@"\n')
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "node3", "MASTER_PORT": free_port()}
    slurm["PATH"] = f"{clone / 'commands'}{os.pathsep}{os.environ['PATH']}"
    checked, *trained, _ = follow("reproduce.md", clone, under_slurm, "Steps", **slurm)
    assert "train: 5 pairs" in checked
    assert "iter_45001.pth" in trained[1]
    (predicted,) = (clone / "work_dirs/voc_test").glob("*.png")
    assert Image.open(predicted).size == Image.open(tree.image()).size


# Without SyncBN, which has no form for a CPU; with crops and views of the size of the images.
TEN_NARROW = """
thin = dict(type="BN", requires_grad=True)
model = dict(
    data_preprocessor=dict(size=(16, 16)),
    backbone=dict(depth=18, base_channels=8, stem_channels=8, norm_cfg=thin,
                  init_cfg=None),
    decode_head=dict(in_channels=64, ea_channels=16, channels=16, norm_cfg=thin),
    auxiliary_head=dict(in_channels=32, channels=16, norm_cfg=thin),
)
train_dataloader = dict(dataset=dict(indices=10, pipeline=[
    dict(type="CheckedLoadImage"), dict(type="CheckedLoadAnnotations", reduce_zero_label=True),
    dict(type="RandomCrop", crop_size=(16, 16)), dict(type="PackSegInputs")]))
test_pipeline, tta_pipeline = _base_.test_pipeline, _base_.tta_pipeline
test_pipeline[1]["scale"] = (96, 32)
tta_pipeline[1]["transforms"][0] = tta_pipeline[1]["transforms"][0][:2]
val_dataloader = test_dataloader = dict(
    num_workers=0, persistent_workers=False, dataset=dict(indices=10, pipeline=test_pipeline))
"""


@pytest.mark.long
def test_a_dry_run_on_ten_images(clone):
    """Train in one process and in two, test at several scales, and write the report."""
    tree = make_tree("ade20k", clone / "made")
    (clone / "data/ade").mkdir(parents=True)
    tree.root.rename(clone / "data/ade/ADEChallengeData2016")

    def narrow(words: list[str], folder: Path, **environment: str) -> CompletedProcess:
        config = folder / "my_project/ten.py"
        if TEN_NARROW not in config.read_text():
            config.write_text(config.read_text() + TEN_NARROW)
        return in_the_clone(words, folder, PORT=free_port(), **environment)

    section = "A dry run on ten images"
    trained, _, tested, reported = follow("reproduce.md", clone, narrow, section)
    assert "iter_10.pth" in trained
    for name in ("ten", "ten_on_two"):
        assert {path.name for path in (clone / "work_dirs" / name).glob("iter_*.pth")}
    assert "mIoU" in tested
    assert "report.html" in reported
