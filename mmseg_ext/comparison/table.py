"""The table of a comparison, for a terminal and as HTML, CSV, LaTeX and JSON."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Sequence
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
from mmseg_ext.comparison.records import (
    LEAST_IMAGES,
    best_runs,
    columns_of,
    same_images,
    score_of,
)
from mmseg_ext.cost.model_cost import markdown
from mmseg_ext.evaluation.checked_iou_metric import read_images
from mmseg_ext.images.pictures import colorize, error_overlay, shrink, to_picture
from mmseg_ext.reports.curves import COLORS, curves_svg
from mmseg_ext.reports.page import template
from mmseg_ext.reports.records import read_records
from mmseg_ext.reports.run_data import data_uri, read_curves
from mmseg_ext.reports.scores import spread

_WORST, _SIDE = 4, 240  # images of a data set that the page shows, and pixels of their longer side


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
                    f"{record['data']}: has fewer than {LEAST_IMAGES} test images; an interval "
                    "would be too narrow"
                )
        for seed, error in record["failed"].items():
            notes.append(f"{record['model']} on {record['data']}, seed {seed}, failed: {error}")
    notes = [*dict.fromkeys(notes)]
    metrics = [*dict.fromkeys(record["metric"] for record in records)]
    cells = {(r["metric"], r["model"], r["data"]): r for r in records}
    curves = {}
    for data in plan.data:  # of each model's first run
        runs = {model: best_runs(plan, data, model)[0] for model in plan.models}
        of_runs = {model: read_curves(run.folder, []) for model, run in runs.items()}
        curves[data] = Markup(curves_svg(of_runs))
    content = {
        "plan": plan,
        "metrics": metrics,
        "columns": columns_of(plan),
        "cells": cells,
        "notes": notes,
        "seeds": [*dict.fromkeys(run.seed for run in plan.runs)],
        "curves": curves,
        "worst": {data: worst_images(plan, data) for data in plan.data},
        "colors": COLORS,
        "versions": versions,
    }
    folder = Path(__file__).parent
    texts = {
        "table.html": template("table.html.j2", folder).render(**content),
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
    if len(set(stems)) < len(stems) or not all(same_images(first, one) for one in others):
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
        pictures = {"image": _jpeg_uri(shown), "truth": _jpeg_uri(colorize(small, palette))}
        for model, run in runs.items():
            predicted = np.asarray(Image.open(run.labels / f"{stems[i]}.png"))
            if getattr(labels, "reduce_zero_label", False):
                predicted = predicted - 1  # mmsegmentation writes the values of the files
            _, small_truth, small = shrink(_SIDE, image, truth, predicted.astype(np.int32))
            ignored = cfg.test_evaluator[0].ignore_index
            wrong = error_overlay(shown, small_truth, small, ignored)
            both = np.vstack([colorize(small, palette), wrong])
            pictures[f"{model}: mean IoU {scores[model][i]:.1f} %"] = _jpeg_uri(both)
        found.append({"name": first.names[i], "pictures": pictures})
    return found


def _jpeg_uri(picture: np.ndarray) -> str:
    """Return RGB (H, W, 3) as the data URI of a JPEG."""
    _, data = cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    return data_uri(data.tobytes(), "jpeg")
