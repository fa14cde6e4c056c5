"""The table of a comparison: scores of each model and data set, and differences with intervals.

Scores are computed from the sums of counts over images. So an interval comes from a bootstrap: the
images are drawn again with replacement, the same for both models, and the scores of the sums are
compared. The interval shows how much a difference depends on the images of the test. How much it
depends on the training is the deviation over seeds.
"""

import base64
import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from markupsafe import Markup
from mmengine.registry import init_default_scope
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext.atomic_write import write_text
from mmseg_ext.comparison.plan import Plan, Run
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.evaluation.boundary_metric import boundary_f1
from mmseg_ext.evaluation.checked_iou_metric import Images, read_images
from mmseg_ext.evaluation.object_metric import object_f1
from mmseg_ext.images.pictures import colorize, error_overlay, shrink, to_picture
from mmseg_ext.reports.curves import COLORS, curves_svg
from mmseg_ext.reports.page import template
from mmseg_ext.reports.run_data import read_curves
from mmseg_ext.reports.scores import area_scores, group_runs, mean_of_known

RESAMPLES = 2000
_LEAST_SEEDS = 3  # for a deviation
_WORST, _SIDE = 4, 240  # images of a data set that the page shows, and pixels of their longer side
Score = Callable[[np.ndarray], np.ndarray]


def score_of(metric: str, classes: Sequence[str]) -> Score:
    """Return the score (...) in percent of counts (..., *count), such as areas (..., C, 3)."""
    kind, _, wanted = metric.partition(".")
    if kind == "objects":
        return object_f1
    name = "Dice" if "Dice" in kind else "IoU"
    of_classes: Score = lambda areas: 100 * area_scores(areas)[name]  # noqa: E731
    if kind == "boundary":
        of_classes = boundary_f1
    if wanted:
        index = list(classes).index(wanted)
        return lambda counts: of_classes(counts)[..., index]
    return lambda counts: mean_of_known(of_classes(counts))


def paired_interval(
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    score: Score,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Return the 95 % interval of score(second) - score(first), the mean over pairs.

    Args:
        first: counts (images, *count) of each run of the first model.
        second: counts of the second model; runs in the same place are a pair, and all runs have
            the same images.
        score: maps sums of counts (..., *count) to scores (...).
        resamples: drawn sets of images, the same in each call.
    """
    images, rng, differences = len(first[0]), np.random.default_rng(0), []
    for begin in range(0, resamples, 100):  # a matrix of all could need gigabytes
        draws = min(100, resamples - begin)
        weights = rng.multinomial(images, np.full(images, 1 / images), draws).astype(float)
        total = np.zeros(draws)
        for sign, runs in ((-1, first), (1, second)):
            for counts in runs:
                sums = weights @ counts.reshape(images, -1)  # exact: integers below 2**53
                total += sign * score(sums.reshape(draws, *counts.shape[1:]))
        differences.append(total / len(first))
    low, high = np.nanpercentile(np.concatenate(differences), [2.5, 97.5])
    return float(low), float(high)


def records_of(plan: Plan, failed: dict[Run, str]) -> list[dict[str, Any]]:
    """Return the table, a record for each data set, metric and model.

    A record has these entries; scores are in percent:

    - `model`, `data`, `metric`
    - `mean` of the seeds, `deviation` (of a sample; None with fewer than three seeds), and `seeds`
      with the score of each
    - `difference` from the first model, the mean over the seeds that both have; its `interval` of
      95 %, and whether it is `distinguishable`: zero is outside. None for the first model, and if
      the test images differ.
    - `rate`: the factor of the learning rate with the best validation; `iterations`
    - `parameters`, `multiply_adds`, and of a training iteration `seconds` and `mib`
    - `failed`: the error of each seed that failed
    """
    records = []
    for data in plan.data:
        chosen = {model: best_runs(plan, data, model) for model in plan.models}
        for kind in plan.tests:
            tested = {}
            for model, runs in chosen.items():
                done = [run for run in runs if run.has_test(kind)]
                tested[model] = {run.seed: (run, read_images(run.files(kind)[""])) for run in done}
            for metric in plan.metrics:
                for model, runs in chosen.items():
                    first = {} if model == plan.models[0] else tested[plan.models[0]]
                    cost = plan.costs[data, model]
                    records.append(
                        {
                            "model": model,
                            "data": data,
                            "metric": metric if kind == "test" else f"{metric}, {kind.upper()}",
                            **_statistics(tested[model], first, kind, metric),
                            "rate": runs[0].rate,
                            "iterations": runs[0].length,
                            "parameters": cost.parameters,
                            "multiply_adds": cost.multiply_adds,
                            "seconds": cost.seconds,
                            "mib": cost.mib,
                            "failed": {run.seed: failed[run] for run in runs if run in failed},
                        }
                    )
    return records


def best_runs(plan: Plan, data: str, model: str) -> list[Run]:
    """Return a model's runs with the rate whose last validations have the best mean mIoU."""
    own = [run for run in plan.runs if (run.data, run.model) == (data, model)]
    groups = group_runs(own)  # one for each rate
    if len(groups) == 1:  # the config may have no validations
        return own

    def validated(runs: list[Run]) -> float:
        curves = [read_curves(run.folder, []).get("mIoU", {}) for run in runs]
        last = [list(curve.values())[-1] for curve in curves if curve]
        return float(np.mean(last)) if last else -1.0

    return max(groups, key=validated)


Tested = dict[int, tuple[Run, Images]]  # by seed


def _statistics(own: Tested, first: Tested, kind: str, metric: str) -> dict[str, Any]:
    """Return mean and deviation of the seeds, and the difference from the first model."""
    names = ("mean", "deviation", "seeds", "difference", "interval", "distinguishable")
    record: dict[str, Any] = dict.fromkeys(names) | {"seeds": {}}
    if not own:
        return record
    score = score_of(metric, next(iter(own.values()))[1].classes)

    def counts(run: Run, images: Images) -> np.ndarray:
        for name, file in run.files(kind).items():
            if name and metric.startswith(name):
                return np.load(file)
        return images.areas

    of_seeds = {seed: counts(*one) for seed, one in own.items()}
    values = {seed: float(score(of_images.sum(0))) for seed, of_images in of_seeds.items()}
    record |= {"mean": float(np.mean(list(values.values()))), "seeds": values}
    if len(values) >= _LEAST_SEEDS:
        record["deviation"] = float(np.std(list(values.values()), ddof=1))
    pairs = [seed for seed in own if seed in first]
    if not pairs or not all(_same_images(own[seed][1], first[seed][1]) for seed in pairs):
        return record
    of_first = [counts(*first[seed]) for seed in pairs]
    of_own = [of_seeds[seed] for seed in pairs]
    differences = [score(b.sum(0)) - score(a.sum(0)) for a, b in zip(of_first, of_own, strict=True)]
    low, high = paired_interval(of_first, of_own, score)
    return record | {
        "difference": float(np.mean(differences)),
        "interval": [low, high],
        "distinguishable": not low <= 0 <= high,
    }


def _same_images(one: Images, other: Images) -> bool:
    """Return whether two tests had the same images with the same labels."""
    return one.names == other.names and np.array_equal(one.areas[..., 1], other.areas[..., 1])


def write_table(plan: Plan, records: Sequence[dict[str, Any]]) -> list[Path]:
    """Write the table as HTML, CSV, LaTeX and JSON to the plan's folder; return the files."""
    notes = [*plan.notes]
    versions = versions_of(plan)
    if len(versions) > 1:
        notes.append(f"versions: the runs have {len(versions)}; table.json lists them")
    for record in records:
        is_tested = record["seeds"] and record["model"] != plan.models[0]
        if is_tested and record["difference"] is None:
            line = f"{record['data']}: {record['model']} has other test images, or no common seed"
            notes.append(f"{line}; no difference is computed")
        for seed, error in record["failed"].items():
            notes.append(f"{record['model']} on {record['data']}, seed {seed}, failed: {error}")
    notes = [*dict.fromkeys(notes)]
    metrics = [*dict.fromkeys(record["metric"] for record in records)]
    cells = {(r["metric"], r["model"], r["data"]): r for r in records}
    content = {
        "plan": plan,
        "metrics": metrics,
        "cells": cells,
        "notes": notes,
        "seeds": [*dict.fromkeys(run.seed for run in plan.runs)],
    }
    curves = {}
    for data in plan.data:  # of each model's first run
        runs = {model: best_runs(plan, data, model)[0] for model in plan.models}
        of_runs = {model: read_curves(run.folder, []) for model, run in runs.items()}
        curves[data] = Markup(curves_svg(of_runs))
    of_page = {
        "curves": curves,
        "worst": {data: worst_images(plan, data) for data in plan.data},
        "colors": COLORS,
        "versions": versions,
    }
    folder = Path(__file__).parent
    texts = {
        "table.html": template("table.html.j2", folder).render(**content, **of_page),
        "table.tex": template("table.tex.j2", folder).render(**content),
        "table.csv": csv_text(records),
        "table.json": json.dumps(
            {"records": records, "notes": notes, "versions": versions}, indent=1
        ),
    }
    for name, text in texts.items():
        write_text(text.rstrip("\n") + "\n", plan.out / name)
    return [plan.out / name for name in texts]


def text_table(plan: Plan, records: Sequence[dict[str, Any]]) -> str:
    """Return the table as Markdown, for a terminal."""
    rows = []
    for metric in dict.fromkeys(record["metric"] for record in records):
        for model in plan.models:
            row = [f"{model}, {metric}"]
            for record in records:
                if (record["model"], record["metric"]) == (model, metric):
                    row += [score_text(record), difference_text(record)]
            rows.append(row)
    headings = ["model"]
    for data in plan.data:
        headings += [data, f"against {plan.models[0]}"]
    return markdown(headings, rows)


def score_text(record: dict[str, Any]) -> str:
    """Return '75.3 ± 0.8', or with too few seeds for a deviation '75.3 (74.9, 75.7)'."""
    if record["mean"] is None:
        return "–"
    if record["deviation"] is not None:
        return f"{record['mean']:.1f} ± {record['deviation']:.1f}"
    if len(record["seeds"]) == 1:
        return f"{record['mean']:.1f}"
    seeds = ", ".join(f"{score:.1f}" for score in record["seeds"].values())
    return f"{record['mean']:.1f} ({seeds})"


def difference_text(record: dict[str, Any]) -> str:
    """Return '+1.2 [0.4, 2.0]', or '+0.3 [-0.5, 1.1] not distinguishable'."""
    if record["difference"] is None:
        return ""
    low, high = record["interval"]
    text = f"{record['difference']:+.1f} [{low:.1f}, {high:.1f}]"
    return text if record["distinguishable"] else f"{text} not distinguishable"


def csv_text(records: Sequence[dict[str, Any]]) -> str:
    """Return the records as CSV, with the scores of the seeds and the errors as JSON."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(records[0])
    for record in records:
        values = record.values()
        writer.writerow([json.dumps(v) if isinstance(v, dict | list) else v for v in values])
    return file.getvalue()


def versions_of(plan: Plan) -> list[dict[str, Any]]:
    """Return the different commits and versions of packages of the trainings."""
    found = []
    for run in plan.runs:
        for path in sorted(run.folder.glob("*/run.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            one = {"commit": record["git_commit"], "devices": record["devices"]}
            one |= record["versions"]
            if one not in found:
                found.append(one)
    return found


def worst_images(plan: Plan, data: str) -> list[dict[str, Any]]:
    """Return the images with the lowest mean IoU over the models, for the page.

    Each has `name`, and `pictures` by title as data URIs: image, truth, and for each model its
    prediction above its wrong pixels. There are none if a model has no test, or if several images
    have one name.
    """
    runs = {model: best_runs(plan, data, model)[0] for model in plan.models}
    if not all(run.has_test("test") and run.labels.is_dir() for run in runs.values()):
        return []
    tested = {model: read_images(run.files("test")[""]) for model, run in runs.items()}
    first, *others = tested.values()
    stems = [Path(name).stem for name in first.names]
    if len(set(stems)) < len(stems) or not all(_same_images(first, one) for one in others):
        return []
    score = score_of("mIoU", first.classes)
    scores = {model: score(images.areas) for model, images in tested.items()}
    order = np.argsort(np.mean(list(scores.values()), axis=0), kind="stable")
    cfg = plan.configs[data, plan.models[0]]
    init_default_scope(cfg.get("default_scope", "mmseg"))
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    found = []
    for i in order[:_WORST].tolist():
        sample = dataset[i]
        labels = sample["data_samples"]
        truth = labels.gt_sem_seg.data[0].numpy().astype(np.int32)
        image = to_picture(sample["inputs"].permute(1, 2, 0).numpy(), cfg.get("rgb_bands"))
        palette = dataset.metainfo["palette"]
        shown, small = shrink(_SIDE, image, truth)
        pictures = {"image": _data_uri(shown), "truth": _data_uri(colorize(small, palette))}
        for model, run in runs.items():
            predicted = np.asarray(Image.open(run.labels / f"{stems[i]}.png"))
            if getattr(labels, "reduce_zero_label", False):
                predicted = predicted - 1  # mmsegmentation writes the values of the files
            _, small_truth, small = shrink(_SIDE, image, truth, predicted.astype(np.int32))
            ignored = cfg.test_evaluator[0].ignore_index
            wrong = error_overlay(shown, small_truth, small, ignored)
            both = np.vstack([colorize(small, palette), wrong])
            pictures[f"{model}: mean IoU {scores[model][i]:.1f} %"] = _data_uri(both)
        found.append({"name": first.names[i], "pictures": pictures})
    return found


def _data_uri(picture: np.ndarray) -> str:
    """Return RGB (H, W, 3) as the data URI of a JPEG."""
    _, data = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"
