"""The guides: a reader's files and commands, beside the configs and nowhere among them."""

import re
import shlex
import shutil
from pathlib import Path

import mmseg
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from tests.engine.runs import ROOT, run_script

FILE = re.compile(r"^`(?P<name>[\w/.-]+)`:.*\n(?:.+\n)*\n```\w+\n(?P<text>(?s:.*?))^```$", re.M)
COMMANDS = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def clone(tmp_path) -> Path:
    for name in ("configs", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def follow(guide: str, folder: Path) -> list[str]:
    """Write the guide's files, run its commands, and give what each of them printed."""
    text = (ROOT / "docs" / guide).read_text()
    for match in FILE.finditer(text):
        path = folder / match["name"]
        assert path.is_relative_to(folder / "my_project")
        path.parent.mkdir(exist_ok=True)
        path.write_text(match["text"])
    printed = []
    for line in "".join(COMMANDS.findall(text)).splitlines():
        command = line.removeprefix("PYTHONPATH=. ")
        path = str(ROOT) if command == line else f"{folder}:{ROOT}"
        program, *words = shlex.split(command)
        if program == "mmseg-ext":
            words.insert(0, str(ROOT / "mmseg_ext/__main__.py"))
        else:
            assert program == "python"
        result = run_script(*words, folder=folder, PYTHONPATH=path)
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
        printed.append(result.stdout + result.stderr)
    return printed


def test_own_head(clone):
    (clone / "data/shapes").mkdir(parents=True)  # what is there already is no obstacle
    resolved, costs, trained, exported = follow("own_head.md", clone)
    assert "type='MaSAHead'" in resolved
    assert "| `my_masa` | 96x96 |" in costs
    assert "mIoU" in trained
    assert "same class 100.000%" in exported
    assert (clone / "my_head.pt2").stat().st_size > 1e6


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
    """Trained by mmengine's own Runner, and its checkpoint tested."""
    (snippet,) = re.findall(
        r"^## Use a head in your own config\n\n```python\n(.*?)^```$",
        (ROOT / "README.md").read_text(),
        re.M | re.S,
    )
    bases = Path(mmseg.__file__).parent / ".mim" / "configs" / "_base_"
    shutil.copytree(bases, tmp_path / "configs/_base_")
    (tmp_path / "configs/_base_/datasets/my_data.py").write_text(MY_DATA)
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
    random = np.random.RandomState(0)
    for split, count in (("train", 4), ("val", 2)):
        for kind in ("images", "annotations"):
            (clone / "data/fields" / kind / split).mkdir(parents=True)
        for i in range(count):
            label = np.kron(random.randint(0, 3, (6, 6)), np.ones((16, 16))).astype(np.uint8)
            image = Image.fromarray(np.stack([label * 80] * 3, 2))
            image.save(clone / f"data/fields/images/{split}/{split}{i}.jpg")
            Image.fromarray(label).save(clone / f"data/fields/annotations/{split}/{split}{i}.png")
    checked, trained, tested, demo, published = follow("own_dataset.md", clone)
    assert "4" in checked and "soil" in trained and "mIoU" in tested
    assert "2 images segmented" in demo
    assert re.search(r"ea_r18_fields-[0-9a-f]{8}\.safetensors", published)
