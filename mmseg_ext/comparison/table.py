"""The table of a comparison: scores of each model and data set, and differences with intervals.

Scores are computed from the sums of counts over images. So an interval comes from a bootstrap: the
images are drawn again with replacement, the same for both models, and the scores of the sums are
compared. The interval tells how much the difference depends on the images of the test. How much it
depends on the training is the deviation over seeds.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmseg_ext.atomic_write import write_text
from mmseg_ext.comparison.plan import Plan, Run
from mmseg_ext.errors import LaunchError, join_names
from mmseg_ext.evaluation.checked_iou_metric import Images, read_images
from mmseg_ext.reports.run_data import read_curves

RESAMPLES = 2000
LEAST_SEEDS = 3  # for a deviation
Score = Callable[[np.ndarray], np.ndarray]


def class_scores(areas: np.ndarray, dice: bool = False) -> np.ndarray:
    """Return the IoU or Dice of classes (..., C) from areas (..., C, 3), in percent.

    The score of a class without pixels is NaN.
    """
    hit, true, predicted = np.moveaxis(np.asarray(areas, float), -1, 0)
    pixels = (true + predicted) / 2 if dice else true + predicted - hit
    nothing = np.full(pixels.shape, np.nan)
    return 100 * np.divide(hit, pixels, out=nothing, where=pixels > 0)


def mean_score(areas: np.ndarray, dice: bool = False) -> np.ndarray:
    """Return the mean over the classes that have pixels (...), from areas (..., C, 3)."""
    scores = class_scores(areas, dice)
    known = ~np.isnan(scores)
    return np.where(known, scores, 0).sum(-1) / np.maximum(known.sum(-1), 1)


def metric_of(name: str, classes: Sequence[str]) -> Score:
    """Return the score of this name: mIoU, mDice, IoU.CLASS or Dice.CLASS.

    Raises:
        LaunchError: for another name.
    """
    kind, _, wanted = name.partition(".")
    if not wanted and kind in ("mIoU", "mDice"):
        return partial(mean_score, dice=kind == "mDice")
    if kind in ("IoU", "Dice") and wanted in classes:
        index = list(classes).index(wanted)
        return lambda areas: class_scores(areas, dice=kind == "Dice")[..., index]
    raise LaunchError(
        f"--metrics {name}: is not a score; use mIoU, mDice, IoU.CLASS or Dice.CLASS, with one of "
        f"{join_names(classes)}"
    )


def paired_interval(
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    score: Score = mean_score,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Return the 95 % interval of score(second) - score(first), the mean over pairs.

    Args:
        first, second: counts of the images (N, ...) of each run; runs of one place are a pair, and
            all have the same images.
        score: maps sums of counts (..., *count) to scores (...).
        resamples: drawn sets of N images, the same in each call.
    """
    images = len(first[0])
    rng = np.random.default_rng(0)
    differences = np.zeros(resamples)
    for begin in range(0, resamples, 500):  # a matrix of all would need 16 GB for 10**6 images
        count = min(500, resamples - begin)
        drawn = rng.multinomial(images, np.full(images, 1 / images), count).astype(float)

        def scores(counts: np.ndarray) -> np.ndarray:
            sums = drawn @ counts.reshape(images, -1)  # noqa: B023
            return score(sums.reshape(-1, *counts.shape[1:]))

        pairs = [scores(b) - scores(a) for a, b in zip(first, second, strict=True)]
        differences[begin : begin + count] = np.mean(pairs, axis=0)
    low, high = np.nanpercentile(differences, [2.5, 97.5])
    return float(low), float(high)


def records_of(plan: Plan, failed: dict[Run, str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return the table, a record for each model, data set and metric.

    A record has `model`, `data`, `metric`, the `mean` of the seeds in percent, its `deviation` (of
    a sample; None with fewer than three seeds), `seeds` with the score of each, and of the runs
    that have the same seeds as the first model's `difference`, `interval` and `distinguishable`,
    which are None for the first model. `rate` is the factor of the learning rate with the best
    validation. `failed` has the error of each seed that failed.
    """
    records = []
    for data in plan.data:
        results, rates = {}, {}
        for model in plan.models:
            rates[model] = best_rate(plan, data, model)
            results[model] = {
                kind: {
                    run.seed: read_images(run.images(kind))
                    for run in _runs(plan, data, model, rates[model])
                    if run.images(kind).is_file()
                }
                for kind in plan.tests
            }
        for kind in plan.tests:
            for metric in metrics:
                for model in plan.models:
                    own = results[model][kind]
                    of_first = results[plan.models[0]][kind]
                    record = _statistics(own, of_first, metric, model == plan.models[0])
                    cost = plan.costs[data, model]
                    runs = _runs(plan, data, model, rates[model])
                    records.append(
                        {
                            "model": model,
                            "data": data,
                            "metric": metric if kind == "test" else f"{metric}, TTA",
                            **record,
                            "rate": rates[model],
                            "iterations": runs[0].length,
                            "parameters": cost.parameters,
                            "multiply_adds": cost.multiply_adds,
                            "seconds": cost.seconds,
                            "mib": cost.mib,
                            "failed": {r.seed: failed[r] for r in runs if r in failed},
                        }
                    )
    return records


def _runs(plan: Plan, data: str, model: str, rate: float) -> list[Run]:
    return [r for r in plan.runs if (r.data, r.model, r.rate) == (data, model, rate)]


def best_rate(plan: Plan, data: str, model: str) -> float:
    """Return the rate whose last validations have the best mean mIoU over the seeds."""
    scores: dict[float, list[float]] = {}
    for run in plan.runs:
        if (run.data, run.model) == (data, model):
            of_rate = scores.setdefault(run.rate, [])
            curve = read_curves(run.folder, []).get("mIoU", {})
            if curve and run.images("test").is_file():
                of_rate.append(list(curve.values())[-1])
    return max(scores, key=lambda rate: np.mean(scores[rate]) if scores[rate] else -1.0)


def _statistics(
    own: dict[int, Images], of_first: dict[int, Images], metric: str, is_first: bool
) -> dict[str, Any]:
    """Return mean and deviation of the seeds, and the difference from the first model."""
    record: dict[str, Any] = dict.fromkeys(
        ("mean", "deviation", "seeds", "difference", "interval", "distinguishable")
    )
    if not own:
        return record | {"seeds": {}}
    score = metric_of(metric, next(iter(own.values())).classes)
    seeds = {seed: float(score(images.areas.sum(0))) for seed, images in own.items()}
    values = list(seeds.values())
    record |= {"mean": float(np.mean(values)), "seeds": seeds}
    if len(values) >= LEAST_SEEDS:
        record["deviation"] = float(np.std(values, ddof=1))
    common = [seed for seed in own if seed in of_first]
    if is_first or not common or not _same_images(own[common[0]], of_first[common[0]]):
        return record
    first, second = [of_first[s].areas for s in common], [own[s].areas for s in common]
    pairs = [score(b.sum(0)) - score(a.sum(0)) for a, b in zip(first, second, strict=True)]
    low, high = paired_interval(first, second, score)
    record |= {
        "difference": float(np.mean(pairs)),
        "interval": [low, high],
        "distinguishable": not low <= 0 <= high,
    }
    return record


def _same_images(one: Images, other: Images) -> bool:
    """Return whether two tests had the same images with the same labels."""
    return one.names == other.names and np.array_equal(one.areas[..., 1], other.areas[..., 1])


def csv_text(records: Sequence[dict[str, Any]]) -> str:
    """Return the records as CSV, with the scores of the seeds and the errors as JSON."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(records[0])
    for record in records:
        cells = []
        for value in record.values():
            is_plain = not isinstance(value, dict | list)
            cells.append(value if is_plain else json.dumps(value))
        writer.writerow(cells)
    return file.getvalue()


def write_table(plan: Plan, records: Sequence[dict[str, Any]]) -> list[Path]:
    """Write the table to the plan's folder, and return the files."""
    texts = {
        "table.csv": csv_text(records),
        "table.json": json.dumps({"records": records, "differences": plan.differences}, indent=1),
    }
    for name, text in texts.items():
        write_text(text + "\n" * (not text.endswith("\n")), plan.out / name)
    return [plan.out / name for name in texts]
