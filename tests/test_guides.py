"""The files and commands of the guides work, in a clone and with an installed wheel."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from subprocess import CompletedProcess

import mmseg
import numpy as np
import pytest
import scipy.io
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from tests.commands.test_tools import write_command
from tests.datasets.trees import make_tree
from tests.engine.runs import ROOT, free_port, run, run_script
from tests.test_packaging import build, copy_sources

FILE = re.compile(r"^`(?P<name>[\w/.-]+)`:.*\n(?:.+\n)*\n```\w+\n(?P<text>(?s:.*?))^```$", re.M)
COMMANDS = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def clone(tmp_path) -> Path:
    for name in ("configs", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def in_the_clone(words: list[str], folder: Path, **environment: str) -> CompletedProcess:
    """Run a command of a page; `PYTHONPATH=.` puts the reader's folder before the clone."""
    program, *words = words
    path = str(ROOT) if "PYTHONPATH" not in environment else f"{folder}:{ROOT}"
    environment |= {"PYTHONPATH": path}
    if program == "bash":
        return run(program, *words, folder=folder, **environment)
    assert program == "mmseg-ext"
    return run_script(ROOT / "mmseg_ext/__main__.py", *words, folder=folder, **environment)


def follow(guide: str, folder: Path, run: Callable = in_the_clone, **environment: str) -> list[str]:
    """Write the guide's files, run its commands, and return the output of each."""
    text = (ROOT / "docs" / guide).read_text()
    for match in FILE.finditer(text):
        path = folder / match["name"]
        assert path.is_relative_to(folder / "my_project")
        path.parent.mkdir(exist_ok=True)
        path.write_text(match["text"])
    printed = []
    for line in "".join(COMMANDS.findall(text)).splitlines():
        words = shlex.split(line)
        given = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, words))
        result = run(words[len(given) :], folder, **environment, **given)
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
        printed.append(result.stdout + result.stderr)
    return printed


def check_own_head(folder: Path, run: Callable = in_the_clone) -> None:
    (folder / "data/shapes").mkdir(parents=True)  # an existing folder is no problem
    resolved, costs, trained, exported = follow("own_head.md", folder, run)
    assert "type='MaSAHead'" in resolved
    assert "| `my_masa` | 96x96 |" in costs
    assert "mIoU" in trained
    assert "same class 100.000%" in exported
    assert (folder / "my_head.pt2").stat().st_size > 1e6


def test_own_head(clone):
    check_own_head(clone)


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


MY_FCN = """
_base_ = [
    "./_base_/models/fcn_r50-d8.py", "./_base_/datasets/my_data.py",
    "./_base_/schedules/schedule_80k.py", "./_base_/default_runtime.py",
]
model = dict(data_preprocessor=dict(size=_base_.crop_size))
"""
MY_DATA = """
crop_size = (64, 64)
load = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations")]
pipeline = [*load, dict(type="PackSegInputs")]
train_dataloader = dict(
    batch_size=2, num_workers=0, sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="CityscapesDataset", data_root="data/mine", img_suffix=".png", seg_map_suffix=".png",
        data_prefix=dict(img_path="images", seg_map_path="labels"), pipeline=pipeline,
    ),
)
val_dataloader = {**train_dataloader, "sampler": dict(type="DefaultSampler", shuffle=False)}
test_dataloader = val_dataloader
val_evaluator = test_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
"""


def test_the_readmes_config_on_mmsegmentations_own_bases(tmp_path):
    """Train it with mmengine's own Runner, and test the checkpoint."""
    (snippet,) = re.findall(
        r"^## Use a head in your own config\n\n```python\n(.*?)^```$",
        (ROOT / "README.md").read_text(),
        re.M | re.S,
    )
    bases = Path(mmseg.__file__).parent / ".mim" / "configs" / "_base_"
    shutil.copytree(bases, tmp_path / "configs/_base_")
    (tmp_path / "configs/_base_/datasets/my_data.py").write_text(MY_DATA)
    (tmp_path / "configs/my_fcn.py").write_text(MY_FCN)
    (tmp_path / "configs/mine.py").write_text(snippet)
    random = np.random.RandomState(0)
    for kind, shape in (("images", (64, 64, 3)), ("labels", (64, 64))):
        (tmp_path / "data/mine" / kind).mkdir(parents=True)
        for i in range(2):
            pixels = random.randint(0, 19, shape).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"data/mine/{kind}/{i}.png")
    short = "train_cfg.max_iters=2 train_cfg.val_interval=2 default_hooks.checkpoint.interval=2"
    for command in (
        f"train.py configs/mine.py --cfg-options model.pretrained=None {short}",
        "test.py configs/mine.py work_dirs/mine/iter_2.pth",
    ):
        tool, *words = command.split()
        result = run_script(ROOT / "tools" / tool, *words, folder=tmp_path)
        assert result.returncode == 0, result.stderr
    assert "mIoU" in result.stdout + result.stderr


def test_own_dataset(clone):
    """The page's commands, and every setting of the config that they write."""
    random = np.random.RandomState(0)
    for i in range(6):
        label = np.kron(random.randint(0, 3, (6, 8)), np.ones((16, 16))).astype(np.uint8)
        image = np.stack([label * 80] * 3, 2)
        for name, pixels in ((f"photos/{i}.JPG", image), (f"masks/{i}.png", label)):
            (clone / name).parent.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(clone / name)
    made, checked, _, tested, _, demo, published = follow("own_dataset.md", clone)
    assert "2 is weed" in made and "clean" in checked and "mIoU" in tested
    assert (clone / "my_project/work_dir/report.html").is_file()
    assert "6 images segmented" in demo
    assert re.search(r"soil_crop_weed-[0-9a-f]{8}\.safetensors", published)
    page = (ROOT / "docs/own_dataset.md").read_text()
    config = (clone / "my_project/config.py").read_text()
    names = {n for pair in re.findall(r"^(\w+)(?:, (\w+))? =", config, re.M) for n in pair if n}
    assert not {name for name in names if f"`{name}`" not in page}


# Replaces Slurm's srun: one task trains a narrow network without SyncBN for one iteration, and the
# checkpoint is renamed to the last one of the schedule.
SRUN = """
while [[ $1 == -* ]]; do [[ $1 == -p ]] && shift; shift; done
SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 "$@" --cfg-options \\
    model.backbone.depth=34 model.backbone.base_channels=8 model.backbone.stem_channels=8 \\
    model.backbone.init_cfg=None model.backbone.norm_cfg.type=BN \\
    model.decode_head.in_channels=64 model.decode_head.ea_channels=16 \\
    model.decode_head.channels=16 model.decode_head.norm_cfg.type=BN \\
    train_dataloader.batch_size=2 train_dataloader.num_workers=0 \\
    train_dataloader.persistent_workers=False test_dataloader.num_workers=0 \\
    test_dataloader.persistent_workers=False \\
    train_cfg.max_iters=1 default_hooks.checkpoint.interval=1 || exit
for last in ea_r101_voc_45k/iter_45001 ea_r101_voc_finetune_15k/iter_15001; do
    [[ ! -e work_dirs/${last%/*}/iter_1.pth ]] || mv work_dirs/{${last%/*}/iter_1,$last}.pth
done
"""


def test_voc_under_slurm(clone):
    """Convert SBD's masks with complete lists; then train and test with lists of a few images."""
    voc, sbd = clone / "data/VOCdevkit/VOC2012", clone / "benchmark_RELEASE/dataset"
    (sbd / "cls").mkdir(parents=True)
    tree = make_tree("voc", clone / "made")
    shutil.copytree(tree.root, voc)
    masks = {mask.name: np.array(Image.open(mask)) for _, mask in tree.pairs["aug"]}
    shutil.rmtree(voc / "SegmentationClassAug")
    for name, mask in masks.items():
        scipy.io.savemat(sbd / f"cls/{name[:-4]}.mat", {"GTcls": {"Segmentation": mask}})

    lists = voc / "ImageSets/Segmentation"
    present = {name: (lists / f"{name}.txt").read_text() for name in ("train", "aug", "val")}

    def whole(name: str, count: int) -> str:
        missing = count - len(present[name].split())
        return present[name] + "".join(f"{name}_{i}\n" for i in range(missing))

    for name, count in (("train", 1464), ("val", 1449)):
        (lists / f"{name}.txt").write_text(whole(name, count))
    (sbd / "train.txt").write_text(whole("aug", 9118))
    (sbd / "val.txt").write_text(present["val"])
    data = (ROOT / "docs/data.md").read_text()
    (words,) = re.findall(r"^python \$CONVERTERS/(voc_aug.py .*)$", data, re.M)
    converters = Path(mmseg.__file__).parent / ".mim/tools/dataset_converters"
    script, *words = words.split()
    result = run_script(converters / script, *words, folder=clone)
    assert result.returncode == 0, result.stderr
    for name, mask in masks.items():
        assert np.array_equal(Image.open(voc / "SegmentationClassAug" / name), mask)
    assert len((lists / "aug.txt").read_text().split()) == 9118 and "aug 9,118" in data
    for name, text in present.items():
        (lists / f"{name}.txt").write_text(text)

    write_command(clone / "commands", "scontrol", "echo 127.0.0.1\n")
    write_command(clone / "commands", "srun", SRUN)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "node3", "MASTER_PORT": free_port()}
    slurm["PATH"] = f"{clone / 'commands'}{os.pathsep}{os.environ['PATH']}"
    checked, *trained, _ = follow("reproduce.md", clone, **slurm)
    assert "train: 5 pairs" in checked
    assert "iter_45001.pth" in trained[1]
    (predicted,) = (clone / "work_dirs/voc_test").glob("*.png")
    assert Image.open(predicted).size == Image.open(tree.image()).size


# Runs commands of an installed package one after another, without a new import for each.
COMMAND_SERVER = """
import json, os, sys
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import mmseg.apis
import mmseg_ext.engine.launch
from mmseg_ext.__main__ import main
for line in sys.stdin:
    words, folder, path, printed = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os.chdir(folder)
        sys.path[:0] = path
        sys.exit(main(words))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=replies, flush=True)
"""


LABELS = ("outputs/labels", "segmented")


@pytest.fixture
def installed(tmp_path) -> Path:
    """Return the commands of a new environment with the wheel, which sees this one's packages."""
    (tmp_path / "clone").mkdir()
    wheel = build("wheel", copy_sources(tmp_path / "clone"), tmp_path / "wheels")
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", wheel], check=True)
    (packages,) = environment.glob("lib/*/site-packages")
    below = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "below.pth").write_text("\n".join(below))  # their own .pth files are ignored
    return python.parent


def test_a_wheel_in_an_empty_folder(installed, tmp_path):
    """Follow the page on heads; then segment a photo, and export and run a model."""
    folder, printed = tmp_path / "empty", tmp_path / "printed"
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PATH": f"{installed}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    cache = tmp_path / "torch/hub/checkpoints"  # torch's cache of downloads
    shutil.copytree(ROOT / "weights", cache)
    environment["TORCH_HOME"] = str(tmp_path / "torch")
    server = subprocess.Popen(
        [installed / "python", "-c", COMMAND_SERVER],
        **{"cwd": folder, "env": environment, "text": True},
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE},
    )

    def run(words: list[str], folder: Path, **given: str) -> CompletedProcess:
        if words[0] == "python":
            shell = ["bash", "-c", " ".join(f'"{word}"' for word in words)]
            return subprocess.run(
                shell, cwd=folder, env=environment, text=True, capture_output=True
            )
        path = [str(folder)] if "PYTHONPATH" in given else []
        order = json.dumps([words[1:], str(folder), path, str(printed)])
        print(order, file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        return CompletedProcess(words, status, printed.read_text(), "")

    with server:
        text = (ROOT / "docs/own_head.md").read_text()
        (link,) = re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)
        subprocess.run(link, shell=True, cwd=folder, env=environment, check=True)
        assert (folder / "configs").resolve().is_relative_to(installed.parent)
        check_own_head(folder, run)
        shutil.copy(ROOT / "demo/street.jpg", folder / "PHOTO.jpg")
        segmented, exported, _ = follow("export.md", folder, run)
        assert "non-commercial" in segmented and "same class 100.000%" in exported
        ours, theirs = (np.array(Image.open(folder / f"{out}/PHOTO.png")) for out in LABELS)
        assert (ours == theirs).mean() > 0.97  # they resize with different libraries
        server.stdin.close()
