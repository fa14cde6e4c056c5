"""The records of a comparison: scores of each model and data set, and differences with intervals.

Scores are computed from the sums of counts over images. So an interval comes from a bootstrap: the
images are drawn again with replacement, the same for both models, and the scores of the sums are
compared. The interval shows how much a difference depends on the images of the test. How much it
depends on the training is the deviation over seeds.

Images count as independent, so frames of a video give an interval that is too narrow. The level is
for a single difference: if all models are equal, one interval in twenty leaves out zero.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from mmseg_ext.comparison.plan import Plan, Run
from mmseg_ext.evaluation.boundary_metric import boundary_f1
from mmseg_ext.evaluation.checked_iou_metric import Images, read_images
from mmseg_ext.evaluation.object_metric import object_f1
from mmseg_ext.reports.run_data import read_curves
from mmseg_ext.reports.scores import area_scores, deviation, group_runs, mean_of_known

RESAMPLES = 2000
LEAST_IMAGES = 6  # for an interval
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
    if images < LEAST_IMAGES:
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
    of_sets: dict[tuple[str, str], list[Statistics]] = {}  # by metric and model
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
                    found = statistics_of(tested[model], first, kind, metric, stream)
                    of_sets.setdefault((name, model), []).append(found)
                    cost = plan.costs[data, model]
                    records.append(
                        {
                            "model": model,
                            "data": data,
                            "metric": name,
                            **found.entries(),
                            "rate": runs[0].rate,
                            "iterations": runs[0].iterations,
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


class Statistics(NamedTuple):
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


def statistics_of(
    own: Tested, first: Tested, kind: str, metric: str, stream: int = 0
) -> Statistics:
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
        return Statistics({})
    score = score_of(metric, next(iter(own.values()))[1].classes)
    values, of_first = scores(own), scores(first)
    if not values:
        return Statistics({})
    mean = float(np.mean([*values.values()]))
    pairs = [seed for seed in values if seed in of_first]
    images = [tested[seed][1] for seed in pairs for tested in (own, first)]
    if not pairs or not all(same_images(images[0], one) for one in images):
        return Statistics(values, mean)
    draws = paired_draws(
        [counts(*first[seed]) for seed in pairs],
        [counts(*own[seed]) for seed in pairs],
        score,
        stream=stream,
    )
    difference = float(np.mean([values[seed] - of_first[seed] for seed in pairs]))
    return Statistics(values, mean, difference, draws, len(images[0].names))


def mean_of_sets(sets: Sequence[Statistics]) -> Statistics:
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
        return Statistics(seeds)
    if len(draws) < len(sets):
        return Statistics(seeds, float(np.mean(means)))
    return Statistics(
        seeds,
        float(np.mean(means)),
        float(np.mean(differences)),
        np.mean(draws, axis=0),
        min(one.images for one in sets),
    )


def same_images(one: Images, other: Images) -> bool:
    """Return whether two tests had the same images with the same labels."""
    return one.names == other.names and np.array_equal(one.areas[..., 1], other.areas[..., 1])
