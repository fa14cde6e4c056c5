"""The report: what a run writes for it, figures computed by hand, and the page in a browser."""

import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.structures import PixelData
from mmseg.evaluation import IoUMetric
from mmseg.structures import SegDataSample
from PIL import Image

from mmseg_ext.commands import run
from mmseg_ext.evaluation import BoundaryMetric, CheckedIoUMetric, ObjectMetric
from mmseg_ext.images.pictures import error_overlay
from mmseg_ext.reports import RunResultsHook, results_hook

# The command makes a page of pictures; the tests compare the numbers that they show.
from mmseg_ext.reports.curves import curves_figure, curves_svg, read_scalars
from mmseg_ext.reports.page import overview, page, report, scores_text
from mmseg_ext.reports.run_data import Results, Run, read_curves, read_run
from mmseg_ext.reports.scores import COLUMNS, class_scores, group_runs, score_table
from tests.configs import CONFIGS
from tests.engine.runs import train_here, write_config
from tests.messages import check_message, lines_with

CLASSES, PALETTE = ["ground", "box <b>", "sky"], [(30, 30, 30), (220, 80, 60), (70, 150, 240)]


def a_run(name: str, confusion: list[list[int]]) -> Run:
    example = {"name": "a.jpg", "kind": "worst", "picture": "data:image/jpeg;base64,"}
    examples = [example | {"miou": 0.9, "wrong": 0.05}]
    shown = (5, "EAHead on ShapesDataset", CLASSES, PALETTE, np.array(confusion), examples)
    # Of several losses the curve shows the one of the logits that are predicted.
    curves = {"decode.pam_cam.loss_ce": {10: 1.5, 20: 0.7}, "decode.pam.loss_ce": {20: 9.0}}
    curves |= {"loss": {20: 9.7}, "mIoU": {20: 48.25}}
    results = Results("validation at iteration 20", *shown)
    return Run(name, "a = 1\n", {"python": "3"}, curves, results, seconds=30)


def test_page_shows_the_figures_of_two_runs():
    first = a_run("first <run>", [[60, 20, 0], [0, 20, 0], [0, 0, 0]])
    second = a_run("second", [[78, 2, 0], [10, 10, 0], [0, 0, 0]])
    html = page([first, second])
    # IoU: 60/80 and 20/40; 78/90 and 10/22. The sky is nowhere.
    assert f'data-miou="{(0.75 + 0.5) / 2:.6f}"' in html
    assert f'data-miou="{(78 / 90 + 10 / 22) / 2:.6f}"' in html
    row = re.search(r"ground</th>(.*?)</tr>", html, re.DOTALL).group(1)
    assert all(text in row for text in ("80.0", "75.0", "86.7", "+11.7"))
    confused = [
        [re.findall(">([^<>]+)</t[hd]>", row) for row in table.split("</tr>")[1:-1]]
        for table in re.findall("predicted as.*?</table>", html, re.DOTALL)
    ]
    box = "box &lt;b&gt;"
    assert confused == [
        [["ground", box, "25.0", "20.00"]],
        [[box, "ground", "50.0", "10.00"], ["ground", box, "2.5", "2.00"]],
    ]
    assert "box <b>" not in html and "first <run>" not in html
    assert re.search(r"\b20 \w+ \w+ 30 s\b", html)
    assert "Worst images" in html and "Typical images" not in html
    assert "a.jpg: mean IoU 90.0 %, 5.0 % of the pixels wrong" in html
    assert "<td>–" in html and "nan" not in html.partition("<main>")[2]
    assert "<script" not in html and "src=" in html
    second.results.classes = ["a", "b", "c"]
    assert "difference" in html and "difference" not in page([first, second])


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ((20.0, 59.5, 60.2, np.nan, 60.4, 60.1), "5 validations is 60.4 % at 50 .*; after 20 it"),
        ((20.0, 50.0, 58.0, 60.0), "4 validations is 60.0 % at 40 iterations, .* still rising"),
        ((20.0, 60.0), "$"),  # too few
    ],
)
def test_page_says_when_the_score_stopped_rising(scores, told):
    """After 20 iterations the best score is less than a point higher, after 10 it is more."""
    run = a_run("run", [[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    run.curves["mIoU"] = {10 * i: score for i, score in enumerate(scores, start=1)}
    assert re.search(told, run.progress) and run.progress in page([run])


def test_scores_of_classes_and_wrong_pixels():
    matrix = np.array([[1, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    scores = class_scores(matrix)
    np.testing.assert_allclose(scores["IoU"], [1 / 3, 2 / 3, 0, np.nan])
    np.testing.assert_allclose(scores["Dice"], [2 / 4, 4 / 5, 0, np.nan])
    np.testing.assert_allclose(scores["precision"], [1 / 2, 2 / 3, np.nan, np.nan])
    np.testing.assert_allclose(scores["recall"], [1 / 2, 1, 0, np.nan])
    ignored = class_scores(matrix, 2)
    np.testing.assert_allclose(ignored["IoU"], [1 / 3, 2 / 3, np.nan, np.nan])
    np.testing.assert_allclose(ignored["recall"], [1 / 2, 1, np.nan, np.nan])
    truth, prediction = np.array([[0, 1, 255]], np.uint8), np.array([[0, 2, 2]], np.uint8)
    out = error_overlay(np.full((1, 3, 3), 100, np.uint8), truth, prediction, 255)
    assert out[0, 1].tolist() == [235, 52, 40] and out[0, 2].tolist() == [255, 255, 255]
    assert out[0, 0].tolist() == [115] * 3  # gray and lighter


def two_runs() -> list[Run]:
    """Return runs of whose ground 60 and 70 of 80 pixels are found."""
    runs = [a_run("a,b", [[60, 20, 0], [0, 20, 0], [0, 0, 0]])]
    runs.append(a_run("c_1", [[70, 10, 0], [0, 20, 0], [0, 0, 0]]))
    return runs


def three_runs() -> list[Run]:
    runs = two_runs()
    return [*runs, a_run("d", runs[1].results.confusion.tolist())]


def test_table_for_spreadsheets_has_mean_and_deviation():
    runs = two_runs()
    counted = dict(F1=0.8, precision=1.0, recall=2 / 3, count_error=0.25)
    runs[0].results.objects = {"objects": counted}
    lines = scores_text(runs[:1], ".csv").splitlines()
    assert lines[0] == "run,class,pixels,IoU,Dice,precision,recall,count error"
    assert lines[1] == '"a,b","ground",80.00,75.00,85.71,100.00,75.00,'
    assert lines[3] == '"a,b","sky",0.00,,,,,'
    assert lines[4:] == [
        '"a,b","mean",,62.50,76.19,75.00,87.50,',
        '"a,b","objects",,,80.00,100.00,66.67,25.00',
    ]
    assert "mean of" not in scores_text(runs, ".csv")  # only one run counts objects
    text = scores_text(three_runs(), ".csv")
    # 75, 87.5 and 87.5: their mean is 83.33, and their deviation 12.5 / sqrt(3).
    assert re.search('mean of 3 runs","ground",80.00,83.33,.*,83.33,$', text, re.MULTILINE)
    assert re.search('deviation of 3 runs","ground",0.00,7.22,.*,7.22,$', text, re.MULTILINE)
    assert re.search(r'<td>83.3<span class="soft"> ± 7.2</span>', page(three_runs()))


def test_objects_of_several_classes_have_a_row_each():
    (run,) = two_runs()[:1]
    counted = dict(precision=1.0, recall=2 / 3, count_error=0.25)
    run.results.objects = {
        name: {"F1": share, **counted} for name, share in (("cars", 0.8), ("i", 0.7))
    }
    lines = scores_text([run], ".csv").splitlines()
    ends = [
        f'"{name}",,,{f1},100.00,66.67,25.00' for name, f1 in (("cars", "80.00"), ("i", "70.00"))
    ]
    assert lines[5:] == [f'"a,b",{end}' for end in ends]
    assert "Cars: F1 80.0 %" in page([run]) and "I: F1 70.0 %" in page([run])


def test_two_runs_have_both_scores_instead_of_a_deviation():
    text, html = scores_text(two_runs(), ".csv"), page(two_runs())
    assert re.search('mean of 2 runs","ground",80.00,81.25,.*,81.25,$', text, re.MULTILINE)
    assert re.search(r'<td>81.2<span class="soft"> \(75.0, 87.5\)</span>', html)
    assert "deviation" not in text and "±" not in html
    assert overview(two_runs())[2] == ("mean of 2 runs", "69.79 (62.50, 77.08)", "")


def test_a_mean_is_one_of_all_runs():
    """The second run never predicts the box, and so has no precision of it."""
    runs = [a_run(name, [[4, 0, 0], [0, 4, 0], [0, 0, 0]]) for name in "ab"]
    runs.append(a_run("c", [[4, 0, 0], [4, 0, 0], [0, 0, 0]]))
    lines = scores_text(runs, ".csv").splitlines()
    assert '"mean of 3 runs","box <b>",50.00,66.67,66.67,,66.67,' in lines
    assert '"deviation of 3 runs","box <b>",0.00,57.74,57.74,,57.74,' in lines


def test_table_for_latex():
    assert r"box <b> & 50.0 & 66.7 & 50.0 & 100.0 \\" in scores_text(two_runs()[:1], ".tex")
    text = scores_text(three_runs(), ".tex")
    assert r"ground & $83.3 \pm 7.2$ &" in text and r"sky & -- & -- & -- & -- \\" in text
    assert text.count(r"\begin{tabular}") == 5  # all runs, each run, and their mean
    assert r"c\_1 & 77.08 & -- \\" in text and r"mean of 3 runs & 72.22 $\pm$ 8.42 & --" in text
    assert r"ground & $81.2\ (75.0, 87.5)$ &" in scores_text(two_runs(), ".tex")
    runs = two_runs()
    runs[1].results.classes = ["a_b", "50 %", "x^2"]
    text = scores_text(runs, ".tex")
    assert text.count(r"\begin{tabular}") == 3
    assert all(f"\n{name} &" in text for name in (r"a\_b", r"50 \%", r"x\textasciicircum{}2"))


def with_config(run: Run, head: str, seed: int, fold: int) -> Run:
    run.config = f"model = dict(head={head!r})\nrandomness = dict(seed={seed})\nfold = {fold}\n"
    folder = f"/runs/{head}_{seed}"
    run.config += f"lists = 'splits/fold{fold}.txt'\nwork_dir = {folder!r}\nout = '{folder}/x'\n"
    return run


def test_runs_that_differ_in_seed_or_fold_are_one_group():
    """Two seeds of a head, two folds of another, and a run of a program without a config."""
    settings = (("ea", 0, 0), ("fcn", 0, 0), ("ea", 1, 0), ("fcn", 0, 3))
    runs = [a_run(f"run {i}", [[60 + i, 20 - i, 0], [0, 20, 0], [0, 0, 0]]) for i in range(5)]
    for one, setting in zip(runs, settings, strict=False):
        with_config(one, *setting)
    runs[4].config = ""
    assert [[run.name for run in group] for group in group_runs(runs)] == [
        ["run 0", "run 2"],
        ["run 1", "run 3"],
        ["run 4"],
    ]
    runs[1].augmented, runs[3].augmented = runs[0].results, runs[4].results
    names, single, augmented = zip(*overview(runs), strict=True)
    means = ["mean of 2 runs like run 0", "mean of 2 runs like run 1"]
    assert [*names] == ["run 0", "run 2", means[0], "run 1", "run 3", means[1], "run 4"]
    assert single[0] == "62.50" and single[2].startswith(f"{single[2][:5]} (62.50, ")
    assert [bool(cell) for cell in augmented] == [False, False, False, True, True, True, False]
    text, html = scores_text(runs, ".csv"), page(runs)
    assert [text.count(f'"{name}","mean"') for name in (*means, "mean of 5 runs")] == [1, 1, 0]
    assert all(name in html for name in names) and "test-time augmentation" in html


def test_weights_and_models_are_no_repetitions():
    """A run from other weights, and folders that are called like a model of their config."""
    confusion = [[4, 0, 0], [0, 4, 0], [0, 0, 0]]

    def sizes(first: str) -> list[int]:
        runs = [with_config(a_run(str(seed), confusion), "ea", seed, 0) for seed in range(3)]
        for one, weights in zip(runs, ("a.pth", "a.pth", "b.pth"), strict=True):
            one.first_config = f"load_from = {weights!r}\n{first}"
            one.config += "load_from = None\nresume = True\n"  # a resumed start
        return [len(group) for group in group_runs(runs)]

    assert sizes("resume = False\n") == [2, 1]
    assert sizes("resume = True\n") == [3]  # continues another folder
    runs = [a_run(name, confusion) for name in ("EAHead", "FCNHead")]
    for one in runs:
        one.config = f"model = dict(type={one.name!r})\nwork_dir = {one.name!r}\n"
    assert [len(group) for group in group_runs(runs)] == [1, 1]


class Images(list):
    metainfo = {"classes": CLASSES, "palette": PALETTE}


def seen_by_the_hook(folder: Path, height: int, width: int, kind=CheckedIoUMetric) -> dict:
    """Let the hook see 3 images whose right half is predicted wrongly; return the results."""
    truth = torch.zeros(1, height, width, dtype=torch.int64)
    truth[..., width // 2 :] = 1
    maps = {"gt_sem_seg": truth, "pred_sem_seg": torch.zeros_like(truth)}
    maps = {name: PixelData(data=labels) for name, labels in maps.items()}
    samples = [SegDataSample(metainfo={"img_path": f"a/{i}.png"}, **maps) for i in range(3)]
    image = torch.tensor([0, 100, 250, 9], dtype=torch.uint8)[:, None, None]
    image = image.expand(4, height, width)  # the fourth channel is not shown
    metric = kind(iou_metrics=["mIoU"])
    metric.dataset_meta = Images.metainfo
    loader = Images([{"inputs": [image]}] * 3)
    loader.dataset = loader
    loop = SimpleNamespace(dataloader=loader, evaluator=SimpleNamespace(metrics=[metric]))
    model = {"backbone": {"type": "RMT"}, "decode_head": [{"type": "FCNHead"}, {"type": "OCRHead"}]}
    settings = {"model": {"module": model}, "load_from": "a/iter_8.pth"}
    runner = SimpleNamespace(test_loop=loop, cfg=Config(settings), log_dir=str(folder))
    hook = RunResultsHook(examples=2)
    hook.after_test_epoch(runner)  # before there are results
    hook.after_test_iter(runner, 0, {"inputs": [[image]]}, samples)  # test-time augmentation
    hook.after_test_iter(runner, 0, loader[0], [SegDataSample()])  # without a label map
    assert not list(folder.iterdir())
    for _ in range(2):
        for i, batch in enumerate(loader):
            hook.after_test_iter(runner, i, batch, [samples[i]])
    metric.process(batch, [sample.to_dict() for sample in samples])
    metric.compute_metrics(metric.results)
    hook.after_test_epoch(runner)
    written = folder / "results.json"
    return json.loads(written.read_text()) if written.exists() else {}


@pytest.mark.parametrize(
    ("size", "shown"), [((40, 60), (40, 60)), ((480, 320), (320, 213)), ((3, 3000), (1, 320))]
)
def test_an_example_has_four_quarters(tmp_path, size, shown):
    """Image and truth above, prediction and wrong pixels below; large ones get smaller."""
    results = seen_by_the_hook(tmp_path, *size)
    assert results["confusion"] == [[3 * size[0] * size[1] // 2, 0, 0]] * 2 + [[0, 0, 0]]
    assert (results["source"], results["augmented"]) == ("test of iter_8.pth", True)
    assert (results["images"], results["head"], results["backbone"]) == (3, "OCRHead", "RMT")
    shown_first = {"file": "0.jpg", "name": "0.png", "kind": "worst", "miou": 0.25, "wrong": 0.5}
    shown_last = shown_first | {"file": "2.jpg", "name": "2.png", "kind": "typical"}
    assert len(results["examples"]) == 3
    assert results["examples"][::2] == [shown_first, shown_last]
    with Image.open(tmp_path / "examples/1.jpg") as file:
        picture = np.asarray(file).astype(int)
    height, width = shown
    assert picture.shape == (2 * height + 4, 2 * width + 4, 3)
    below, right = height + 4, width + 4
    gray = round(0.55 * 350 / 3 + 60)
    colors = {(0, 0): (250, 100, 0), (0, right): PALETTE[0], (0, -1): PALETTE[1]}
    colors |= dict.fromkeys([(-1, 0), (-1, width - 1)], PALETTE[0])
    colors |= {(below, right): (gray,) * 3, (-1, -1): (235, 52, 40)}
    colors[below - 2, width + 2] = (128,) * 3
    for place, color in colors.items():
        assert np.abs(picture[place] - color).max() < 30, place


def test_pixels_of_an_ignored_class_are_no_errors(tmp_path):
    seen_by_the_hook(tmp_path, 40, 60, partial(CheckedIoUMetric, ignore_index=1))
    with Image.open(tmp_path / "examples/1.jpg") as file:
        assert min(file.getpixel((123, 83))) > 225  # white, in the lower right corner


def test_nothing_is_written_on_other_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(results_hook.dist, "is_main_process", lambda: False)
    assert seen_by_the_hook(tmp_path, 8, 8) == {} == dict.fromkeys(tmp_path.iterdir())


def test_mmsegmentations_metric_has_the_same_results(tmp_path):
    """Labels that are no classes are left out, where `CheckedIoUMetric` raises an error."""
    for name in ("own", "stock"):
        (tmp_path / name).mkdir()
    expected = seen_by_the_hook(tmp_path / "own", 40, 60)
    results = seen_by_the_hook(tmp_path / "stock", 40, 60, IoUMetric)
    assert results["confusion"] == expected["confusion"]
    assert results["examples"] == expected["examples"]
    labels = torch.tensor([[0, 1, 2, 3, -1, 255]])
    found = results_hook._count(torch.tensor([[0, 0, 2, 1, 1, 1]]), labels, 3, 255)
    assert found.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1]]


def validate(folder: Path, widths: list[int], batch: int = 1, **settings) -> dict:
    """Return the results of images of 10 pixels with as many wrong ones, called 0.png, ..."""
    samples = []
    for i, wrong in enumerate(widths):
        truth = torch.zeros(1, 1, 10, dtype=torch.int64)
        guess = truth.clone()
        guess[..., :wrong] = 1
        maps = {"gt_sem_seg": PixelData(data=truth), "pred_sem_seg": PixelData(data=guess)}
        samples.append(SegDataSample(metainfo={"img_path": f"{i}.png"}, **maps))
    loader = Images(samples)
    loader.dataset = loader
    metrics: list = [SimpleNamespace(intersect_and_union=None, ignore_index=255)]
    metrics += [ObjectMetric("sky", prefix=prefix) for prefix in (None, "trees", "unseen")]
    metrics += [BoundaryMetric()]
    loop = SimpleNamespace(dataloader=loader, evaluator=SimpleNamespace(metrics=metrics))
    cfg = Config({"model": {}, **settings})
    runner = SimpleNamespace(val_loop=loop, cfg=cfg, log_dir=str(folder), iter=7)
    hook = RunResultsHook(examples=2)
    for start in range(0, len(samples), batch):
        outputs = samples[start : start + batch]
        images = [torch.zeros(3, 1, 10, dtype=torch.uint8)] * len(outputs)
        hook.after_val_iter(runner, start, {"inputs": images}, outputs)
    scores = dict(zip(ObjectMetric.score_names, (75.0, 50.0, 25.0, np.nan), strict=True))
    logged = {f"objects/{name}": score for name, score in scores.items()}
    logged |= {f"trees/{name}": score / 5 for name, score in scores.items()}
    hook.after_val_epoch(runner, logged | {"mIoU": 3.0, "boundary/mF1": 7.0})
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("batch", [1, 3])
def test_worst_images_come_first_and_then_a_typical_one(tmp_path, batch):
    results = validate(tmp_path, [1, 9, 2, 3, 2, 8, 0], batch)
    shown = [(entry["name"], entry["kind"]) for entry in results["examples"]]
    assert shown[:2] == [("1.png", "worst"), ("5.png", "worst")]
    assert shown[2] in [("2.png", "typical"), ("4.png", "typical")]
    assert [entry["wrong"] for entry in results["examples"]] == pytest.approx([0.9, 0.8, 0.2])
    assert results["confusion"] == [[45, 25, 0], [0, 0, 0], [0, 0, 0]]
    shares = dict(F1=0.75, precision=0.5, recall=0.25)
    assert [*results["objects"]] == ["objects", "trees"]
    for prefix, factor in (("objects", 1), ("trees", 5)):
        found = results["objects"][prefix]
        assert np.isnan(found.pop("count_error"))
        assert found == pytest.approx({name: share / factor for name, share in shares.items()})


def test_objects_of_older_results_are_read(work_dir, foreign):
    scores = dict(F1=0.75, precision=0.5, recall=0.25, count_error=0.1)
    for objects in (scores, {"objects": scores}):
        change_results(work_dir, foreign, objects=objects)
        assert read_run(foreign.parent).results.objects == {"objects": scores}


def test_of_images_that_a_sampler_repeats_one_counts(tmp_path, monkeypatch):
    """The second of two processes has the images 1 and 3 of four; a third is repeated."""
    monkeypatch.setattr(results_hook.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(results_hook.dist, "get_rank", lambda: 1)
    results = validate(tmp_path, [1, 2, 0, 0])
    assert results["confusion"][0] == [17, 3, 0]


def test_curves_start_at_zero_in_one_color_for_each_run():
    curves = a_run("a", [[1]]).curves
    curves["lr"] = {10: 0.1, 20: 0.0}
    loss, miou, rate = curves_figure({f"run {i}": curves for i in range(3)}).axes
    assert len({line.get_color() for axes in (loss, miou, rate) for line in axes.lines}) == 3
    assert [line.get_data()[1].tolist() for line in rate.lines] == [[0.1, 0.0]] * 3
    assert [axes.get_ylim()[0] for axes in (loss, miou)] == [loss.get_xlim()[0], 0] == [0, 0]
    assert miou.get_ylim()[1] == 100 and loss.get_ylim()[1] >= 1.5
    assert [line.get_data()[1].tolist() for line in miou.lines] == [[48.25]] * 3
    assert [line.get_data()[1].tolist() for line in loss.lines] == [[1.5, 0.7]] * 3
    assert miou.get_legend().get_texts()[0].get_text() == "run 0 48.2"
    assert curves_figure({"short": {"loss": {20: 1.0}}}).axes[0].lines[0].get_marker() == "."
    svg = curves_svg({"costs $a$": curves})
    assert "costs $a$" in svg and "var(--soft)" in svg and "var(--line)" in svg


@pytest.mark.parametrize(
    ("runs", "title", "styles"),
    [
        (("decode.loss_ce", "decode.out.loss_ce"), "(cross-entropy)", "--"),
        (("decode.loss_dice", "loss_mask"), "(sum of all losses)", "--"),
        (
            ("decode.loss_ce", "decode.loss_dice"),
            "(cross-entropy; dashed: sum of all losses)",
            "-=",
        ),
        (("lr", "decode.loss_ce"), "(cross-entropy)", "--"),
    ],
)
def test_the_title_names_the_losses_that_are_shown(runs, title, styles):
    curves = {}
    for i, name in enumerate(runs):
        curves[str(i)] = {name: {1: 1.0, 2: 0.5}}
        if name != "lr":
            curves[str(i)] |= {"loss": {1: 3.0, 2: 2.0}}
    axes = curves_figure(curves).axes[0]
    assert axes.get_title().endswith(title)
    assert "".join("=" if line.get_linestyle() == "--" else "-" for line in axes.lines) == styles


def test_every_name_is_in_the_legend():
    names = ["_base", "__", "b", ""]
    legend = curves_figure({name: {"mIoU": {2: 50.0}} for name in names}).axes[1].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [f"{name} 50.0" for name in names]
    svg = curves_svg({"_without": {"loss": {1: 1.0}}})
    assert "_without" in svg


def test_curves_of_a_resumed_run_are_merged_and_cut_lines_told(tmp_path):
    for stamp, lines in (
        ("1", '{"loss": 3.0, "step": 1}\n{"loss": 2.0, "step": 2}\n{"loss": 2.0, "st\n[1]\n'),
        ("2", '{"loss": 1.5, "step": 2}\n{"loss": 1.0, "step": 3}\n'),
        ("3", "{"),
    ):
        folder = tmp_path / stamp / "vis_data"
        folder.mkdir(parents=True)
        (folder / "scalars.json").write_text(lines)
    notes = []
    assert read_curves(tmp_path, notes)["loss"] == {1: 3.0, 2: 1.5, 3: 1.0}
    paths = [tmp_path / i / "vis_data/scalars.json" for i in "13"]
    assert notes == [f"{paths[i]}: {2 - i} damaged lines are left out" for i in (0, 1)]


def write_epochs(folder: Path, epochs, length: int, interval: int, start: int = 0, **shared) -> str:
    """Write the log of epochs as `LoggerHook` does with `log_metric_by_epoch`."""
    rows = []
    for epoch in epochs:
        for done in range(interval, length + 1, interval):
            step = (epoch - 1) * length + done
            if step > start:
                rows.append({"loss": 1.0, "epoch": epoch, "iter": step, "step": step} | shared)
        rows.append({"mIoU": 10.0 * epoch, "step": epoch})
    folder.joinpath("vis_data").mkdir(parents=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "vis_data/scalars.json").write_text(text)
    return text


def test_validations_of_epochs_are_at_their_iterations(tmp_path):
    """The last iterations of an epoch are not logged; the second start is within an epoch."""
    notes = []
    write_epochs(tmp_path / "1", (1, 2, 3), length=107, interval=50)
    assert read_curves(tmp_path, notes)["mIoU"] == {107: 10.0, 214: 20.0, 321: 30.0}
    write_epochs(tmp_path / "2", (4, 5, 6), length=107, interval=50, start=371)
    write_record(tmp_path / "2", 371)
    curves = read_curves(tmp_path, notes)
    assert [*curves["mIoU"]] == [107, 214, 321, 428, 535, 642] and max(curves["loss"]) == 635
    assert not notes


def test_a_validation_of_unknown_iteration_is_at_the_line_before_it_with_a_note(tmp_path):
    """Of one epoch, whose length is not known, and of iterations, where each step is 0."""
    write_epochs(tmp_path / "one/1", (1,), length=107, interval=50)
    text = write_epochs(tmp_path / "many/1", (1, 2), length=100, interval=50, epoch=1)
    file = tmp_path / "many/1/vis_data/scalars.json"
    file.write_text(re.sub(r'("mIoU".*"step": )\d', r"\g<1>0", text))
    for name, places in (("one", [100]), ("many", [100, 200])):
        notes = []
        assert [*read_curves(tmp_path / name, notes)["mIoU"]] == places
        assert (
            lines_with(notes[0], name, "default_hooks.logger.log_metric_by_epoch=False")
            and len(notes) == 1
        )
    text = '{"mIoU": 20.0, "step": 2}\n' + '{"loss": 1.0, "iter": 250, "epoch": 3, "step": 250}\n'
    assert read_scalars(text, 200) == ({  # an interrupted validation is repeated first
        "mIoU": {200: 20.0}, "loss": {250: 1.0}, "iter": {250: 250.0}, "epoch": {250: 3.0}
    }, [])  # fmt: skip


def test_validations_of_iterations_stay_where_they_are():
    rows = [{"mIoU": 1.0, "step": 0}, *({"loss": 1.0, "iter": i, "step": i} for i in (2, 4))]
    rows += [{"mIoU": 2.0, "step": 5}, {"loss": 1.0, "iter": 6, "step": 6}]
    curves, notes = read_scalars("\n".join(map(json.dumps, rows)))
    assert (curves["mIoU"], notes) == ({0: 1.0, 5: 2.0}, [])


def write_record(folder, begin=0, **times):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"start_iteration": begin, **times}))


def test_time_of_a_run_and_its_resumption(tmp_path):
    """A run of 37 minutes over midnight and its resumption of 90 seconds; a test has no record."""
    write_record(tmp_path / "1", started="2026-03-01T23:40:00", ended="2026-03-02T00:17:00")
    write_record(tmp_path / "2", 50, started="2026-03-02T08:00:00", ended="2026-03-02T08:01:30")
    write_record(tmp_path / "3", 60)  # of version 1.0.0
    (tmp_path / "1/vis_data").mkdir()
    (tmp_path / "1/vis_data/scalars.json").write_text('{"loss": 1.0, "time": 0.1, "step": 50}\n')
    assert read_run(tmp_path).seconds == 37 * 60 + 90


def test_time_of_a_real_run(work_dir):
    (path,) = work_dir.glob("*/run.json")
    record = json.loads(path.read_text())
    assert record["started"] < record["ended"]
    assert 0 < read_run(work_dir).seconds < 600


def test_a_later_start_replaces_what_follows_it(tmp_path):
    """A resume at 20 of a run of 40, and a new run in the same folder."""
    for folder, begin, steps in (("1", 0, (10, 20, 30, 40)), ("2", 20, (30,)), ("3", 0, (10,))):
        (tmp_path / folder / "vis_data").mkdir(parents=True)
        rows = [f'{{"loss": {folder}, "step": {step}}}\n' for step in steps]
        (tmp_path / folder / "vis_data/scalars.json").write_text("".join(rows))
        times = dict(started="2026-03-01T10:00:00", ended="2026-03-01T10:01:00")
        write_record(tmp_path / folder, begin, **times)
        run = read_run(tmp_path)
        expected = {"1": (60, [10, 20, 30, 40]), "2": (120, [10, 20, 30]), "3": (60, [10])}
        assert (run.seconds, [*run.curves["loss"]]) == expected[folder]


def test_a_new_training_replaces_the_results_of_an_earlier_one(work_dir, tmp_path):
    """Tests come before, between and after two trainings; the second is resumed."""
    for day, (begin, augmented) in enumerate(
        [(None, False), (0, False), (None, True), (0, False), (20, False), (None, True)]
    ):
        folder = tmp_path / f"2026010{day}_000000"
        folder.mkdir()
        if begin is not None:
            write_record(folder, begin, seed=day)
            (folder / "config.py").write_text(f"a = {day}\n")
        if day != 4:
            change_results(work_dir, folder, images=day, time=day, augmented=augmented)
            (folder / "cost.json").write_text(json.dumps({"parameters": day}))
        found = read_run(tmp_path)
        # No result or size of the first training is shown with the second.
        expected = [(0, None), (1, None), (1, 2), (3, None), (3, None), (3, 5)][day]
        shown = [one and one.images for one in (found.results, found.augmented)]
        assert tuple(shown) == expected
        assert found.cost == {"parameters": str(day - (day == 4))}
        assert found.first_config == ["", *2 * ["a = 1\n"], *3 * ["a = 3\n"]][day]
    for path in tmp_path.glob("*/run.json"):  # of mmengine's own Runner
        path.unlink()
    assert read_run(tmp_path).results.images == 3


def test_a_new_training_has_no_results_before_its_validation(work_dir, tmp_path):
    for name, begin in (("20260101_000000", 0), ("20260102_000000", 0)):
        write_record(tmp_path / name, begin)
        (tmp_path / name / "vis_data").mkdir()
        (tmp_path / name / "vis_data/scalars.json").write_text('{"loss": 1.0, "step": 1}\n')
    change_results(work_dir, tmp_path / "20260101_000000")
    found = read_run(tmp_path)
    assert found.results is None and "no validation" in found.notes[-1]


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    options = ["train_cfg.max_iters=4", "train_cfg.val_interval=4"]
    options.append("default_hooks.logger.interval=1")
    settings = [f"dataset.data_root={folder}/shapes", "num_workers=0", "persistent_workers=False"]
    settings += [f"dataset.recipe.{part}" for part in ("seed=3", "train=8", "val=7", "size=64")]
    for split in ("train", "val"):
        options += [f"{split}_dataloader.{setting}" for setting in settings]
    train_here(CONFIGS / "ea_r18_shapes.py", folder / "run", *options)
    return folder / "run"


def test_scores_of_other_images_are_told(work_dir, tmp_path, capsys):
    """The validation of a run next to a test of another one; folds have images of their own."""
    results = [*work_dir.glob("*/results.json")][-1]
    names = ("a", "b", "fold1", "fold2")
    splits = ("images/val", "images/test", "lists/fold1.txt", "lists/fold2.txt")
    for number, (name, split) in enumerate(zip(names, splits, strict=True)):
        content = json.loads(results.read_text()) | {"split": split, "images": 8 + number // 3}
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1/results.json").write_text(json.dumps(content | {"examples": []}))
    assert run("report", [str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out, err = capsys.readouterr()
    assert lines_with(err, "b: ", "8 images of test", "8 images of val", "one split")
    assert "on 8 images of val (" in out
    assert run("report", [str(tmp_path / "fold1"), str(tmp_path / "fold2")]) == 0
    assert "scores of" not in capsys.readouterr().err


def test_a_run_is_named_once(work_dir, tmp_path, capsys):
    """Also by a link such as `latest`: its scores would be in the mean twice."""
    (tmp_path / "latest").symlink_to(work_dir)
    assert run("report", [str(work_dir), str(tmp_path / "latest")]) == 1
    assert lines_with(capsys.readouterr().err, "latest", str(work_dir), "once")
    assert run("report", [str(work_dir), "--out", str(tmp_path / "scores.csv"), "--csv"]) == 1
    assert lines_with(capsys.readouterr().err, "scores.csv", "scores.html")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (("x", "x", "x (2)"), ["x (1)", "x (3)", "x (2)"]),
        (("x (1)", "x", "x", "x (1)"), ["x (1) (1)", "x (2)", "x (3)", "x (1) (4)"]),
        (("a", "b"), ["a", "b"]),
    ],
)
def test_every_run_has_its_own_name(work_dir, tmp_path, given, shown):
    folders = [tmp_path / str(i) / name for i, name in enumerate(given)]
    for folder in folders:
        (folder / "1").mkdir(parents=True)
        change_results(work_dir, folder / "1")
    runs, _ = report(folders, tmp_path / "report.html")
    assert [run.name for run in runs] == shown
    alone, _ = report(str(folders[0]), tmp_path / "report.html")  # no list of its letters
    assert [run.name for run in alone] == [given[0]]


def test_equal_results_are_two_runs():
    """The page finds a run among the others, which no arrays may hinder."""
    first, second = (a_run("same", [[1, 0, 0], [0, 1, 0], [0, 0, 0]]) for _ in range(2))
    assert first != second and first.results != second.results
    assert "points against same" in page([first, second])


def test_figures_are_those_of_the_run(work_dir):
    run = read_run(work_dir)
    assert run.title == "ea_r18_shapes: EAHead on ResNetV1c, ShapesDataset"
    assert run.iterations == 4 and run.environment["seed"] == "0"
    results = run.results
    assert results.source.endswith(" 4") and results.images == 7
    assert 100 * results.miou == pytest.approx(run.curves["mIoU"][4], abs=0.006)
    assert results.confusion.sum() == 7 * 64 * 64
    kinds = [example["kind"] for example in results.examples]
    assert kinds == ["worst"] * 6 + ["typical"]
    (written,) = work_dir.glob("*/results.json")
    scores = [entry["miou"] for entry in json.loads(written.read_text())["examples"]]
    assert scores[0] >= 0 and scores[:6] == sorted(scores[:6]) and max(scores) <= 1
    assert [example["miou"] for example in results.examples] == scores
    assert run.environment["precision"] == "float32"
    assert run.training["parameters"] == "0.97 M"
    assert run.training["multiply-adds"].startswith("0.15 GMAC")
    with Image.open(written.parent / "examples/0.jpg") as picture:
        assert picture.size == (132, 132)


@pytest.mark.parametrize(
    ("kind", "sky"),
    [
        (CheckedIoUMetric, np.nan),
        (partial(CheckedIoUMetric, nan_to_num=0), 0),
        (partial(IoUMetric, nan_to_num=0), 0),
        (partial(IoUMetric, nan_to_num=1), 1),
        (partial(CheckedIoUMetric, nan_to_num=1, ignore_index=2), np.nan),
    ],
)
def test_scores_are_those_of_the_log(tmp_path, kind, sky):
    """The sky is nowhere: it counts as `nan_to_num`, but not if it is ignored."""
    (tmp_path / "1").mkdir()
    seen_by_the_hook(tmp_path / "1", 4, 4, kind)
    metric = kind(iou_metrics=["mIoU", "mDice", "mFscore"])
    metric.dataset_meta = Images.metainfo
    truth = torch.zeros(1, 4, 4, dtype=torch.int64)
    truth[..., 2:] = 1
    maps = {"gt_sem_seg": {"data": truth}, "pred_sem_seg": {"data": torch.zeros_like(truth)}}
    metric.process({}, [maps])
    logged = metric.evaluate(1)
    table = score_table(read_run(tmp_path).results)
    shown = dict(zip(COLUMNS, table.values[table.rows.index("mean")], strict=True))
    names = {"mIoU": "IoU", "mDice": "Dice", "mPrecision": "precision", "mRecall": "recall"}
    for name, column in names.items():
        assert 100 * shown[column] == pytest.approx(logged[name], abs=0.006), name
    np.testing.assert_equal(table.values[2, 1:5], [sky] * 4)


def test_the_run_of_a_project_has_its_name_and_picture(work_dir, tmp_path):
    """All projects have a `config.py` and a `work_dir`."""
    folder = tmp_path / "weeds"
    shutil.copytree(work_dir, folder / "work_dir")
    for path in folder.glob("work_dir/*/results.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"config": "config"}))
    (folder / "config.py").touch()
    Image.new("RGB", (3, 2)).save(folder / "preview.png")
    found = read_run(folder / "work_dir")
    assert found.name == "weeds" and found.title.startswith("weeds: EAHead")
    assert page([found]).count('src="data:image/png;base64,') == 1
    (folder / "config.py").unlink()
    other = read_run(folder / "work_dir")
    assert other.name == "work_dir" and not other.preview


def test_test_time_augmentation_does_not_stand_for_the_run(work_dir, tmp_path):
    for i, augmented in enumerate((False, False, True)):
        (tmp_path / str(i)).mkdir()
        change_results(work_dir, tmp_path / str(i), images=1 + i, time=i, augmented=augmented)
    found = read_run(tmp_path)
    assert found.results.images == 2 and found.augmented.images == 3


@pytest.fixture
def foreign(tmp_path) -> Path:
    """The log folder of a run by someone else, tmp_path/run/1."""
    folder = tmp_path / "run/1"
    (folder / "vis_data").mkdir(parents=True)
    (folder / "vis_data/scalars.json").write_text('{"loss": 1.0, "step": 1}\n')
    return folder


def change_results(work_dir: Path, folder: Path, **changes: object) -> Path:
    """Write the results of `work_dir`, changed, to `folder`."""
    (source,) = work_dir.glob("*/results.json")
    path = folder / "results.json"
    path.write_text(json.dumps({**json.loads(source.read_text()), "examples": [], **changes}))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"palette": [["a", "b", "c"]] * 6},
        {"images": None},
        {"palette": [[0, 0, 0]] * 5},
        {"confusion": [[1] * 5] * 5},
        {"confusion": [[1e300] * 6] * 6},
        {"confusion": [1] * 6},
        {"objects": [1.0]},
        {"objects": {"objects": {"F1": 0.5}}},
        {"classes": 6},
    ],
)
def test_results_of_another_program_are_refused_in_one_line(work_dir, foreign, changes, capsys):
    path = change_results(work_dir, foreign, **changes)
    assert run("report", [str(foreign.parent)]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"mmseg_ext: {path}: ") and line.count("\n") == 1


def test_a_missing_picture_is_left_out_with_a_note(work_dir, tmp_path, capsys):
    shutil.copytree(work_dir, tmp_path / "run")
    (picture,) = tmp_path.glob("run/*/examples/1.jpg")
    picture.unlink()
    assert run("report", [str(tmp_path / "run")]) == 0
    html = (tmp_path / "run/report.html").read_text()
    assert html.count('src="data:image/jpeg') == 6 and str(picture) in html
    assert lines_with(capsys.readouterr().err, picture, "left out")


@pytest.mark.parametrize("text", ["", '{"loss": 1.0, "st'])
def test_a_run_that_logged_nothing_yet_is_told(foreign, text, capsys):
    path = foreign / "vis_data/scalars.json"
    path.write_text(text)
    assert run("report", [str(foreign.parent)]) == 1
    check_message(
        capsys.readouterr().err,
        "no logged values",
        where=f"mmseg_ext: {path}: ",
        todo="default_hooks.logger.interval",
    )


def test_a_new_training_that_logged_nothing_yet_is_told(foreign, capsys):
    """The log next to it is of an earlier training."""
    folder = foreign.parent / "2"
    write_record(folder)
    assert run("report", [str(foreign.parent)]) == 1
    check_message(capsys.readouterr().err, "no logged values", where=f"mmseg_ext: {folder}: ")


def test_a_folder_that_does_not_exist_and_a_file_are_told(tmp_path, capsys):
    (tmp_path / "log.json").touch()
    for name, what in (("missing", "does not exist"), ("log.json", "is a file")):
        assert run("report", [str(tmp_path / name)]) == 1
        where = f"mmseg_ext: {tmp_path / name}: {what}"
        check_message(capsys.readouterr().err, where=where, todo="work_dirs/CONFIG")


@pytest.mark.parametrize("wrong", ["--out scores.csv", "--out .", "nothing", "foreign"])
def test_nothing_is_tested_before_all_arguments_are_right(
    work_dir, foreign, tmp_path, monkeypatch, wrong
):
    tested = []

    def fail(words):
        tested.append(words)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.chdir(tmp_path)
    words = wrong.replace("foreign", str(foreign.parent)).split()
    assert run("report", ["--evaluate", str(work_dir), *words]) == 1
    assert not tested
    with pytest.raises(ValueError, match="test failed"):
        report([work_dir], evaluate=True)
    assert len(tested) == 1


@pytest.mark.parametrize("text", ["{bad", "3"])
@pytest.mark.parametrize("name", ["run.json", "cost.json"])
def test_damaged_records_are_named(name, text, foreign, capsys):
    (foreign / name).write_text(text)
    assert run("report", [str(foreign.parent)]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"mmseg_ext: {foreign / name}: ") and line.count("\n") == 1


def test_losses_of_a_run_that_diverged_and_more_classes_than_a_table_shows(work_dir, foreign):
    shown = {"classes": [*range(31)], "palette": [[i] * 3 for i in range(31)]}
    change_results(work_dir, foreign, **shown, confusion=[[9] * 31] * 31)
    losses = (float("nan"), float("inf"), 1e300, 0.5)
    lines = [json.dumps({"loss": loss, "step": step}) for step, loss in enumerate(losses)]
    (foreign / "vis_data/scalars.json").write_text("\n".join(lines))
    run = read_run(foreign.parent)
    assert np.isnan([*run.curves["loss"].values()]).tolist() == [True, True, True, False]
    html = page([run])
    assert 'class="wide matrix"' not in html and 'class="wide matrix"' in page([read_run(work_dir)])
    assert html.count('<td class="left">') == 10  # confusions


def test_a_report_runs_nothing_of_a_work_directory(foreign, tmp_path, capsys):
    mark = tmp_path / "ran"
    (foreign / "config.py").write_text(f"a = open({str(mark)!r}, 'w')\n")
    assert run("report", [str(foreign.parent)]) == 0
    assert "results.json" in capsys.readouterr().err
    assert "a = open(" in (tmp_path / "run/report.html").read_text()
    assert not mark.exists()
    assert run("report", [str(tmp_path)]) == 1
    assert lines_with(capsys.readouterr().err, tmp_path, "vis_data/scalars.json", "results.json")


STOCK = """
default_hooks = dict(_delete_=True, timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=1, log_metric_by_epoch=False),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="CheckpointHook", by_epoch=False, interval=2, save_best="mIoU"))
runner_type, min_backbone_share = "Runner", 0.0
train_cfg, crop_size = dict(type="IterBasedTrainLoop", max_iters=2, val_interval=2), (32, 32)
visualizer = dict(vis_backends=[dict(type="LocalVisBackend")], name="stock")
"""


@pytest.mark.slow
def test_a_run_of_mmsegmentation_gets_classes_and_images(tmp_path, capfd):
    """Its own Runner writes curves and a checkpoint; the report tests the checkpoint if asked."""
    config = write_config(tmp_path, STOCK)
    cfg = Config.fromfile(config)
    work = cfg.work_dir = str(tmp_path / "work dir")
    Runner.from_cfg(cfg).train()
    page_file = Path(work, "report.html")
    assert run("report", [work]) == 0
    html = page_file.read_text()
    assert f"report --evaluate &#39;{work}&#39;" in html and "minutes per iteration" in html
    best = Path(work, "best_mIoU_iter_2.pth")
    (copy,) = Path(work).glob("*/vis_data/config.py")
    assert f"mmseg-ext export &#39;{copy}&#39; &#39;{best}&#39;" in html
    assert "Configuration and environment" in html and "GMAC" not in html
    capfd.readouterr()
    assert run("report", [work, "--evaluate", "--csv"]) == 0
    found = read_run(Path(work))
    assert found.results.source == "test of best_mIoU_iter_2.pth"
    assert 100 * found.results.miou == pytest.approx(found.curves["mIoU"][2], abs=0.006)
    assert len(found.results.examples) == 8 and found.results.confusion.sum() == 8 * 32 * 32
    html = page_file.read_text()
    assert "GMAC at 32x32" in html and "report --evaluate" not in html
    assert capfd.readouterr().out.splitlines()[-2:] == [f"{work}/report.html", f"{work}/report.csv"]


def test_evaluation_needs_a_config_and_a_checkpoint(foreign, capsys):
    assert run("report", ["--evaluate", str(foreign.parent)]) == 1
    assert lines_with(capsys.readouterr().err, foreign.parent, "--evaluate", "*.py", "*.pth")


def test_page_without_facts_has_no_empty_section():
    bare = a_run("bare", [[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    bare.environment, bare.config = {}, ""
    assert "Configuration and environment" not in page([bare])


def test_page_of_two_runs_loads_nothing(work_dir, tmp_path, capsys):
    path = tmp_path / "report.html"
    shutil.copytree(work_dir, tmp_path / "copy")
    assert run("report", [str(work_dir), str(tmp_path / "copy"), "--out", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(path)
    sources = re.findall('src="(.*?)"', path.read_text())
    assert len(sources) == 14 and all(s.startswith("data:image/jpeg") for s in sources)
