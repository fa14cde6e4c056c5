"""The report: figures of a run computed by hand, and the page in a real browser."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmseg_ext.reports.confusion import class_iou, confusion_matrix
from mmseg_ext.reports.html_page import _apart, error_overlay, page
from PIL import Image

from mmseg_ext.commands.report import main
from mmseg_ext.commands.train import parser as train_parser
from mmseg_ext.commands.train import runner_of
from mmseg_ext.cost.model_cost import Cost
from mmseg_ext.reports.curves import Curve
from mmseg_ext.reports.run_data import (
    Example,
    Run,
    find_checkpoint,
    find_config,
    labelled_data,
    ranked,
    read_curves,
    read_environment,
    read_run,
)
from tests.reports.browser import CHROMIUM, Browser

CLASSES, PALETTE = ("ground", "box <b>", "sky"), [[30, 30, 30], [220, 80, 60], [70, 150, 240]]


def a_run(name: str, confusion: list[list[int]], lr: float = 0.1) -> Run:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, (40, 60), dtype=np.uint8)
    image = rng.integers(0, 255, (40, 60, 3), dtype=np.uint8)
    return Run(
        name=name,
        config=Config({"model": {"type": "X"}, "optim": {"lr": lr}}),
        checkpoint=Path(f"{name}.pth"),
        environment={"Python": "3", "seed": "0"},
        curves={"loss": Curve([10, 20], [1.5, 0.7]), "mIoU": Curve([20], [48.25])},
        classes=CLASSES,
        palette=PALETTE,
        images=5,
        confusion=np.array(confusion),
        examples=[Example("a.jpg", "best", 0.9, image, truth, truth[::-1])],
        cost=Cost(name, (1, 3, 40, 60), 1234567, 10**9, 2 * 10**9, 12.34, 3.0),
        machine="a machine",
    )


FIRST = a_run("first run", [[60, 20, 0], [0, 20, 0], [0, 0, 0]])
SECOND = a_run("second run", [[80, 0, 0], [10, 10, 0], [0, 0, 0]], lr=0.2)


def test_confusion_and_iou_of_known_maps():
    truth = np.array([[0, 0, 1], [1, 255, 2]], np.uint8)
    prediction = np.array([[0, 1, 1], [1, 0, 0]], np.uint8)
    matrix = confusion_matrix(truth, prediction, 4)
    assert matrix.tolist() == [[1, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(class_iou(matrix), [1 / 3, 2 / 3, 0, np.nan])
    with pytest.raises(ValueError, match="classes=2"):
        confusion_matrix(truth, prediction, 2)


def test_ranked_takes_each_image_once_and_no_score_twice():
    scores = [(0.5, 0), (0.9, 1), (float("nan"), 2), (0.1, 3), (0.7, 4), (0.3, 5)]
    assert ranked(scores, 1) == [("best", 1), ("median", 0), ("worst", 3)]
    assert [index for _, index in ranked(scores[:2], 2)] == [1, 0]


def test_curves_of_a_resumed_run_are_merged(tmp_path):
    for stamp, lines in (
        ("1", '{"loss": 3.0, "step": 1}\n{"loss": 2.0, "step": 2}\n'),
        ("2", '{"loss": 1.5, "step": 2}\n{"loss": 1.0, "step": 3}\n'),
    ):
        folder = tmp_path / stamp / "vis_data"
        folder.mkdir(parents=True)
        (folder / "scalars.json").write_text(lines)
    assert read_curves(tmp_path)["loss"] == Curve([1, 2, 3], [3.0, 1.5, 1.0])


def test_a_moved_work_dir_finds_its_weights_and_a_bare_one_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"found 0 \.py"):
        find_config(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint"):
        find_checkpoint(tmp_path)
    for name in ("iter_1.pth", "iter_2.pth"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "last_checkpoint").write_text("/elsewhere/iter_1.pth")
    assert find_checkpoint(tmp_path).name == "iter_1.pth"
    assert main([str(tmp_path)]) == 1


def test_config_is_that_of_the_training_and_not_of_a_later_test(tmp_path):
    for stamp, scalars in (("1", '{"loss": 3.0, "step": 1}'), ("2", "")):
        folder = tmp_path / stamp / "vis_data"
        folder.mkdir(parents=True)
        (folder / "scalars.json").write_text(scalars)
        (folder / "config.py").write_text(f"which = {stamp}")
    (tmp_path / "config.py").write_text("which = 2")
    assert Config.fromfile(find_config(tmp_path)).which == 1
    (tmp_path / "1" / "vis_data" / "config.py").unlink()
    assert find_config(tmp_path) == tmp_path / "config.py"


def test_error_overlay_marks_wrong_pixels_and_not_the_ignored():
    truth = np.array([[0, 1, 255]], np.uint8)
    prediction = np.array([[0, 2, 2]], np.uint8)
    example = Example("x", "best", 0.5, np.full((1, 3, 3), 100, np.uint8), truth, prediction)
    out = error_overlay(example)
    assert out[0, 1].tolist() == [235, 52, 40] and out[0, 2].tolist() == [255, 255, 255]
    assert len(set(out[0, 0].tolist())) == 1


def test_page_holds_the_runs_figures_and_differences():
    html = page([FIRST, SECOND])
    # IoU: 60/80 and 20/40; 80/90 and 10/20.
    assert f'data-miou="{(0.75 + 0.5) / 2:.6f}"' in html
    assert f'data-miou="{(80 / 90 + 0.5) / 2:.6f}"' in html
    row = re.search(r"ground</th>(.*?)</tr>", html).group(1)
    assert "80.0" in row and "75.0" in row and "88.9" in row and "+13.9" in row
    assert "box &lt;b&gt;" in html and "box <b>" not in html
    assert "1,234,567" in html and "12.3" in html and "3.0" in html and "a machine" in html
    assert re.search(r"optim\.lr</th><td[^>]*>0\.1</td><td[^>]*>0\.2</td>", html)
    assert "<script" not in html and "http" not in html.replace("http-equiv", "")
    with pytest.raises(ValueError, match="runs"):
        page([])


def test_labels_at_the_curves_ends_stay_apart():
    assert _apart([50.0, 10.0, 52.0], 14, 0, 100) == [50, 10, 64]
    assert _apart([98.0, 97.0, 99.0], 14, 0, 100) == [86, 72, 100]
    assert _apart([30.0], 14, 0, 100) == [30]


def test_losses_that_ran_away_are_left_out_of_the_chart():
    run = a_run("run", np.eye(3, dtype=int).tolist())
    run.curves["loss"] = Curve([10, 20, 30], [1.5, float("inf"), 0.7])
    run.curves["mIoU"] = Curve([20], [float("nan")])
    html = page([run])
    assert re.search(r'<polyline points="\S+ \S+"', html)  # two points
    assert ">0.7</text>" in html and "Validation mIoU" not in html


def test_many_classes_make_a_picture_of_the_matrix():
    run = a_run("many", np.eye(3, dtype=int).tolist())
    run.classes = [f"class {i}" for i in range(30)]
    run.palette = [[i, i, i] for i in range(30)]
    run.confusion = np.eye(30, dtype=np.int64)
    run.confusion[3, 7] = 5
    html = page([run])
    assert 'alt="confusion matrix"' in html
    pair = re.search(r"class 3</th>(.*?)</tr>", html[html.index("taken for") :]).group(1)
    assert "class 7" in pair and f"{100 * 5 / 6:.1f}" in pair


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    options = {
        "train_cfg.max_iters": 4,
        "train_cfg.val_interval": 4,
        "default_hooks.checkpoint.interval": 4,
        "default_hooks.logger.interval": 1,
        "param_scheduler": [dict(type="PolyLR", eta_min=1e-4, by_epoch=False, end=4)],
    }
    for split in ("train", "val", "test"):
        options[f"{split}_dataloader.dataset.data_root"] = str(folder / "shapes")
        options[f"{split}_dataloader.dataset.recipe"] = dict(seed=3, train=8, val=6, size=64)
        options[f"{split}_dataloader.num_workers"] = 0
        options[f"{split}_dataloader.persistent_workers"] = False
    args = train_parser().parse_args(["configs/ea_r18_shapes.py"])
    args.work_dir, args.cfg_options = str(folder / "run"), options
    runner_of(args).train()
    return folder / "run"


def test_figures_are_those_of_the_run(work_dir):
    run = read_run(work_dir, examples=1)
    assert run.images == 6
    assert 100 * run.miou == pytest.approx(run.curves["mIoU"].values[-1], abs=0.006)
    assert run.confusion.sum() == 6 * 64 * 64
    state = torch.load(run.checkpoint, weights_only=False)["state_dict"]
    learned = [v for k, v in state.items() if "running_" not in k and "num_batches" not in k]
    assert run.cost.parameters == sum(v.numel() for v in learned)
    assert [e.rank for e in run.examples] == ["best", "median", "worst"]
    scores = [e.miou for e in run.examples]
    assert scores == sorted(scores, reverse=True)
    assert read_environment(work_dir)["seed"] == "0"


def test_validation_data_stand_for_test_data_without_labels(work_dir):
    data = {
        name: {"dataset": {"type": name, "pipeline": [{"type": "LoadImageFromFile"}]}}
        for name in ("test_dataloader", "val_dataloader")
    }
    with pytest.raises(ValueError, match="neither test_dataloader nor val_dataloader"):
        labelled_data(Config(data))
    data["val_dataloader"]["dataset"]["pipeline"].append({"type": "CheckedLoadAnnotations"})
    assert labelled_data(Config(data)).type == "val_dataloader"
    voc = Config.fromfile("configs/ea_r101_voc_finetune_15k.py")
    assert labelled_data(voc) == voc.val_dataloader.dataset
    other = Config.fromfile("configs/ea_r18_shapes.py")
    assert labelled_data(other) == other.test_dataloader.dataset
    steps = [{"type": "LoadImageFromFile"}, {"type": "PackSegInputs"}]
    run = read_run(work_dir, limit=2, options={"test_dataloader.dataset.pipeline": steps})
    assert run.images == 2 and run.confusion.sum() == 2 * 64 * 64


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_browser_loads_the_page_and_nothing_else(work_dir, tmp_path, capsys):
    path = tmp_path / "report.html"
    assert main([str(work_dir), str(work_dir), "--out", str(path), "--examples", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == str(path)
    miou = float(re.search(r"mIoU ([\d.]+) %", printed).group(1))
    colours = set()
    with Browser(tmp_path / "profile") as browser:
        for width in (400, 1400):
            for dark in (False, True):
                browser.open(path, width, dark)
                assert browser.requests() == [path.resolve().as_uri()]
                assert browser.complaints() == []
                assert browser.evaluate("document.documentElement.scrollWidth") <= width
                broken = "[...document.images].filter(i => !i.naturalWidth).length"
                assert browser.evaluate(broken) == 0
                big = browser.evaluate("document.querySelector('.big').dataset.miou")
                assert 100 * float(big) == pytest.approx(miou, abs=0.006)
                colours.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
                browser.screenshot(tmp_path / "page.png")
                with Image.open(tmp_path / "page.png") as picture:
                    assert picture.width == width and picture.height > 900
        assert len(colours) == 2
        assert browser.evaluate("document.querySelectorAll('.shot').length") == 6
