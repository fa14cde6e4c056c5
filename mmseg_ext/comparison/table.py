"""The table of a comparison: scores of each model and data set, and differences with intervals.

Scores are computed from the sums of counts over images. So an interval comes from a bootstrap: the
images are drawn again with replacement, the same for both models, and the scores of the sums are
compared. The interval shows how much a difference depends on the images of the test. How much it
depends on the training is the deviation over seeds.

Images count as independent, so frames of a video give an interval that is too narrow. The level is
for a single difference: if all models are equal, one interval in twenty leaves out zero.
"""

import base64
import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

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
from mmseg_ext.reports.records import read_records
from mmseg_ext.reports.run_data import read_curves
from mmseg_ext.reports.scores import area_scores, deviation, group_runs, mean_of_known, spread

RESAMPLES = 2000
_LEAST_IMAGES = 6  # for an interval
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


def paired_draws(
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    score: Score,
    resamples: int = RESAMPLES,
    stream: int = 0,
) -> np.ndarray:
    """Return score(second) - score(first), the mean over pairs, of drawn sets of images.

    Args:
        first: counts (images, *count) of each run of the first model.
        second: counts of the second model; runs in the same place are a pair, and all runs have
            the same images.
        score: maps sums of counts (..., *count) to scores (...).
        resamples: drawn sets of images, the same in each call with one `stream`.
        stream: of random numbers; sets of other images have another one.

    Returns:
        (resamples,), NaN where the drawn images have no score.
    """
    images, rng, differences = len(first[0]), np.random.default_rng(stream), []
    for begin in range(0, resamples, 100):  # a matrix of all could need gigabytes
        draws = min(100, resamples - begin)
        weights = rng.multinomial(images, np.full(images, 1 / images), draws).astype(float)
        total = np.zeros(draws)
        for sign, runs in ((-1, first), (1, second)):
            for counts in runs:
                sums = weights @ counts.reshape(images, -1)  # exact: integers below 2**53
                total += sign * score(sums.reshape(draws, *counts.shape[1:]))
        differences.append(total / len(first))
    return np.concatenate(differences)


def interval_of(draws: np.ndarray, images: int) -> list[float] | None:
    """Return the 95 % interval of draws of so many images; None for fewer than six.

    The percentiles are further out than 2.5 and 97.5 %, by Hesterberg's rule for expanded
    percentile intervals (arXiv 1411.5279). Without it, intervals of equal models leave out zero in
    one of ten tables with ten images, and in one of two with two images. Five images cannot show a
    difference at this level: equal signs in all five have a probability of 1/16.
    """
    if images < _LEAST_IMAGES:
        return None
    normal, freedom = NormalDist(), images - 1
    z = normal.inv_cdf(0.975)
    # The quantile of Student's t, by its series in 1 / freedom.
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    share = 100 * normal.cdf(-t * math.sqrt(images / freedom))
    return np.nanpercentile(draws, [share, 100 - share]).tolist()


def records_of(plan: Plan, failed: dict[Run, str]) -> list[dict[str, Any]]:
    """Return the table, a record for each data set, metric and model.

    A record has these entries; scores are in percent:

    - `model`, `data`, `metric`
    - `mean` of the seeds, `deviation` (of a sample; None with fewer than three seeds), and `seeds`
      with the score of each
    - `difference` from the first model, the mean over the seeds that both have; its `interval` of
      95 %, and whether it is `distinguishable`: zero is outside. None for the first model, and if
      the test images differ; for fewer than six images only the difference is there.
    - `rate`: the factor of the learning rate with the best validation; `iterations`
    - `parameters`, `multiply_adds`, and of a training iteration `seconds` and `mib`
    - `failed`: the error of each seed that failed

    Several data sets are followed by the records of their mean, whose `data` is 'mean of 3 sets',
    without entries of a training. All sets count equally, and the interval draws the images of each
    set.
    """
    records = []
    of_sets: dict[tuple[str, str], list[_Statistics]] = {}  # by metric and model
    for stream, data in enumerate(plan.data):
        chosen = {model: best_runs(plan, data, model) for model in plan.models}
        for kind in plan.tests:
            tested = {}
            for model, runs in chosen.items():
                done = [run for run in runs if run.has_test(kind)]
                tested[model] = {run.seed: (run, read_images(run.files(kind)[""])) for run in done}
            for metric in plan.metrics:
                name = metric if kind == "test" else f"{metric}, {kind.upper()}"
                for model, runs in chosen.items():
                    first = {} if model == plan.models[0] else tested[plan.models[0]]
                    found = _statistics(tested[model], first, kind, metric, stream)
                    of_sets.setdefault((name, model), []).append(found)
                    cost = plan.costs[data, model]
                    records.append(
                        {
                            "model": model,
                            "data": data,
                            "metric": name,
                            **found.entries(),
                            "rate": runs[0].rate,
                            "iterations": runs[0].length,
                            "parameters": cost.parameters,
                            "multiply_adds": cost.multiply_adds,
                            "seconds": cost.seconds,
                            "mib": cost.mib,
                            "failed": {run.seed: failed[run] for run in runs if run in failed},
                        }
                    )
    if len(plan.data) > 1:
        for (metric, model), sets in of_sets.items():
            named = {"model": model, "data": columns_of(plan)[-1], "metric": metric, "failed": {}}
            empty = dict.fromkeys(records[0])  # in its order
            records.append(empty | named | mean_of_sets(sets).entries())
    return records


def columns_of(plan: Plan) -> list[str]:
    """Return the columns of the table: the data sets, and of several the mean."""
    return [*plan.data, f"mean of {len(plan.data)} sets"] if len(plan.data) > 1 else plan.data


def best_runs(plan: Plan, data: str, model: str) -> list[Run]:
    """Return a model's runs with the rate whose last validations have the best mean mIoU.

    A rate with which a training failed comes after those with which fewer did.
    """
    own = [run for run in plan.runs if (run.data, run.model) == (data, model)]
    groups = group_runs(own)  # one for each rate
    if len(groups) == 1:  # the config may have no validations
        return own

    def validated(runs: list[Run]) -> tuple[int, float]:
        done = [run for run in runs if run.checkpoint.is_file()]
        curves = [read_curves(run.folder, []).get("mIoU", {}) for run in done]
        last = [list(curve.values())[-1] for curve in curves if curve]
        return len(done), float(np.mean(np.nan_to_num(last))) if last else -1.0

    return max(groups, key=validated)


Tested = dict[int, tuple[Run, Images]]  # by seed


class _Statistics(NamedTuple):
    """Scores and difference of a model on a data set, or their means over data sets."""

    seeds: dict[int, float]
    mean: float | None = None
    difference: float | None = None  # from the first model
    draws: np.ndarray | None = None  # of the difference, (RESAMPLES,)
    images: int = 0

    def entries(self) -> dict[str, Any]:
        """Return the entries of a record; see `records_of`."""
        spread = deviation([*self.seeds.values()])
        interval = None if self.draws is None else interval_of(self.draws, self.images)
        return {
            "mean": self.mean,
            "deviation": None if spread is None else float(spread),
            "seeds": self.seeds,
            "difference": self.difference,
            "interval": interval,
            "distinguishable": None if interval is None else not interval[0] <= 0 <= interval[1],
        }


def _statistics(own: Tested, first: Tested, kind: str, metric: str, stream: int = 0) -> _Statistics:
    """Return the scores of a model's seeds, and the difference from the first model.

    A seed has no score if its test has nothing to count: no pixel of the class, no object.
    """

    def counts(run: Run, images: Images) -> np.ndarray:
        for name, file in run.files(kind).items():
            if name in (metric, metric.partition(".")[0]):  # 'objects.CLASS', or 'boundary'
                return np.load(file)
        return images.areas

    def scores(tested: Tested) -> dict[int, float]:
        found = {seed: float(score(counts(*one).sum(0))) for seed, one in tested.items()}
        return {seed: value for seed, value in found.items() if not math.isnan(value)}

    if not own:
        return _Statistics({})
    score = score_of(metric, next(iter(own.values()))[1].classes)
    values, of_first = scores(own), scores(first)
    if not values:
        return _Statistics({})
    mean = float(np.mean([*values.values()]))
    pairs = [seed for seed in values if seed in of_first]
    images = [tested[seed][1] for seed in pairs for tested in (own, first)]
    if not pairs or not all(_same_images(images[0], one) for one in images):
        return _Statistics(values, mean)
    draws = paired_draws(
        [counts(*first[seed]) for seed in pairs],
        [counts(*own[seed]) for seed in pairs],
        score,
        stream=stream,
    )
    difference = float(np.mean([values[seed] - of_first[seed] for seed in pairs]))
    return _Statistics(values, mean, difference, draws, len(images[0].names))


def mean_of_sets(sets: Sequence[_Statistics]) -> _Statistics:
    """Return the mean over data sets; it has what all sets have.

    Draws of different sets are independent. The interval is as wide as the smallest set requires.
    """
    seeds = {}
    for seed in sets[0].seeds:
        if all(seed in one.seeds for one in sets):
            seeds[seed] = float(np.mean([one.seeds[seed] for one in sets]))
    means = [one.mean for one in sets if one.mean is not None]
    differences = [one.difference for one in sets if one.difference is not None]
    draws = [one.draws for one in sets if one.draws is not None]
    if len(means) < len(sets):
        return _Statistics(seeds)
    if len(draws) < len(sets):
        return _Statistics(seeds, float(np.mean(means)))
    return _Statistics(
        seeds,
        float(np.mean(means)),
        float(np.mean(differences)),
        np.mean(draws, axis=0),
        min(one.images for one in sets),
    )


def _same_images(one: Images, other: Images) -> bool:
    """Return whether two tests had the same images with the same labels."""
    return one.names == other.names and np.array_equal(one.areas[..., 1], other.areas[..., 1])


def write_table(plan: Plan, records: Sequence[dict[str, Any]]) -> list[Path]:
    """Write the table as HTML, CSV, LaTeX and JSON to the plan's folder; return the files."""
    notes = [*plan.notes]
    starts = [(run, one) for run in plan.runs for one in read_records(run.folder).values()]
    versions = versions_of(starts)
    if len(versions) > 1:
        notes.append(f"versions: the runs have {len(versions)}; table.json lists them")
    for what, hashes in hashes_of(starts).items():
        if len(hashes) > 1:
            todo = "for a fair comparison train all again with another --out"
            notes.append(f"{what}: differ between the trainings; {todo}")
    for record in records:
        line = f"{record['data']}: {record['model']}"
        of_set, of_first = record["data"] in plan.data, record["model"] == plan.models[0]
        if of_set and record["mean"] is None and len(record["failed"]) < len(plan.seeds):
            notes.append(f"{line} has no {record['metric']}; the test has nothing of it to count")
        elif of_set and not of_first and record["mean"] is not None:
            if record["difference"] is None:
                notes.append(
                    f"{line} has other test images, or no common seed; no difference is computed"
                )
            elif record["interval"] is None:
                notes.append(
                    f"{record['data']}: has fewer than {_LEAST_IMAGES} test images; an interval "
                    "would be too narrow"
                )
        for seed, error in record["failed"].items():
            notes.append(f"{record['model']} on {record['data']}, seed {seed}, failed: {error}")
    notes = [*dict.fromkeys(notes)]
    metrics = [*dict.fromkeys(record["metric"] for record in records)]
    cells = {(r["metric"], r["model"], r["data"]): r for r in records}
    content = {
        "plan": plan,
        "metrics": metrics,
        "columns": columns_of(plan),
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
    for data in columns_of(plan):
        headings += [data, f"against {plan.models[0]}"]
    return markdown(headings, rows)


def score_text(record: dict[str, Any]) -> str:
    """Return the mean and its `spread`: '75.3 ± 0.8'."""
    if record["mean"] is None:
        return "–"
    return f"{record['mean']:.1f} {spread([*record['seeds'].values()])}".rstrip()


def difference_text(record: dict[str, Any]) -> str:
    """Return '+1.2 [0.4, 2.0]', or '+0.3 [-0.5, 1.1] not distinguishable'."""
    if record["difference"] is None:
        return ""
    if record["interval"] is None:
        return f"{record['difference']:+.1f} (too few images)"
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


Starts = Sequence[tuple[Run, dict[str, Any]]]  # the record of each start of a training


def versions_of(starts: Starts) -> list[dict[str, Any]]:
    """Return the different commits and versions of packages of the trainings."""
    found = []
    for _, record in starts:
        one = {"commit": record["git_commit"], "devices": record["devices"]}
        one |= record["versions"]
        if one not in found:
            found.append(one)
    return found


def hashes_of(starts: Starts) -> dict[str, set[str]]:
    """Return the different hashes of each set's files and of each own module.

    Version 1.0.0 recorded none.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for run, record in starts:
        if "training_data" in record:
            found[f"images or label maps of {run.data}"].add(record["training_data"])
        for name, text in record.get("own_modules", {}).items():
            found[f"contents of {name}.py"].add(text)
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
