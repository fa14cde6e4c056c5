"""Scores of classes and objects as tables, and the mean and spread of repeated runs."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

T = TypeVar("T")  # a run
COLUMNS = ("pixels", "IoU", "Dice", "precision", "recall", "count error")
OBJECT_SCORES = ("F1", "precision", "recall", "count_error")
_LEAST_RUNS = 3  # for a deviation


def area_scores(areas: np.ndarray) -> dict[str, np.ndarray]:
    """Return IoU, Dice, precision and recall of classes (..., C), from 0 to 1.

    The areas (..., C, 3) are pixels that are hit, true and predicted. A score is NaN if there are
    no pixels for it.
    """
    hit, truth, predicted = np.moveaxis(np.asarray(areas, float), -1, 0)
    scores = {}
    for name, pixels in {
        "IoU": truth + predicted - hit,
        "Dice": (truth + predicted) / 2,
        "precision": predicted,
        "recall": truth,
    }.items():
        nothing = np.full(hit.shape, np.nan)
        scores[name] = np.divide(hit, pixels, out=nothing, where=pixels > 0)
    return scores


def class_scores(
    confusion: np.ndarray, ignore_index: int = 255, nan_to_num: float | None = None
) -> dict[str, np.ndarray]:
    """Return `area_scores` of each class, (classes,); NaN for an ignored class.

    Args:
        confusion: (classes, classes), pixels by truth (rows) and prediction.
        ignore_index: the label that is ignored, a class or not.
        nan_to_num: the score of a class without pixels for it, as in `IoUMetric`; NaN by default.
    """
    areas = np.stack([confusion.diagonal(), confusion.sum(1), confusion.sum(0)], -1)
    is_ignored = np.arange(len(areas)) == ignore_index
    areas[is_ignored] = 0
    scores = area_scores(areas)
    if nan_to_num is not None:
        for score in scores.values():
            score[np.isnan(score) & ~is_ignored] = nan_to_num
    return scores


def mean_of_known(scores: np.ndarray) -> np.ndarray:
    """Return the means (...) of the scores (..., C) that are not NaN; NaN if there are none."""
    known = ~np.isnan(scores)
    with np.errstate(invalid="ignore"):
        return np.where(known, scores, 0).sum(-1) / known.sum(-1)


class Table(NamedTuple):
    """Scores (rows, COLUMNS) from 0 to 1, NaN where there is none.

    The rows are the classes, their mean and, if they were counted, objects, with their F1 as Dice.
    """

    rows: list[str]
    values: np.ndarray


def score_table(results: Any) -> Table:
    """Return the scores of `Results`."""
    values = np.full((len(results.classes), len(COLUMNS)), np.nan)
    values[:, 0] = results.class_shares
    values[:, 1:5] = np.column_stack([results.scores[name] for name in COLUMNS[1:5]])
    mean = mean_of_known(values.T)
    mean[0] = np.nan  # of shares it says nothing
    rows, lines = [*results.classes, "mean"], [values, mean]
    for name, of_objects in results.objects.items():
        counted = [of_objects[key] for key in OBJECT_SCORES]
        rows.append(name)
        lines.append(np.array([np.nan, np.nan, *counted]))
    return Table(rows, np.vstack(lines))


def group_runs(runs: Iterable[T]) -> list[list[T]]:
    """Return runs in groups that repeat one `experiment`, in their order."""
    groups: dict[Any, list[T]] = {}
    for run in runs:
        groups.setdefault(cast(Any, run).experiment, []).append(run)
    return list(groups.values())


def deviation(values: Any) -> np.ndarray | None:
    """Return the deviation of a sample (...) of runs (runs, ...); None for fewer than three."""
    return np.std(values, axis=0, ddof=1) if len(values) >= _LEAST_RUNS else None


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return what a table has next to the mean of runs, in their unit.

    Three or more have a deviation, '± 0.8', and two are both there, '(74.9, 75.7)'.
    """
    found = deviation(values)
    if found is not None:
        return f"± {found:.{digits}f}"
    return f"({', '.join(f'{value:.{digits}f}' for value in values)})" if len(values) > 1 else ""
