"""Intervals against scipy's bootstrap; what the table says of few seeds and small differences."""

import copy
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from mmengine.config import Config

from mmseg_ext.comparison import records, table
from mmseg_ext.comparison.plan import Run, differing_settings, with_data
from mmseg_ext.evaluation.boundary_metric import boundary_f1
from mmseg_ext.evaluation.checked_iou_metric import Images, read_images
from mmseg_ext.reports.page import template
from tests.configs import CONFIGS

DATA = Path(__file__).parents[1] / "data"
CLASSES = ["sky", "car", "pole"]


def areas_of(seed: int, skill: float, images: int = 40) -> np.ndarray:
    """Return areas (images, 3, 3) of random predictions, as a test writes them."""
    truth_random, random = np.random.RandomState(0), np.random.RandomState(seed)
    areas = np.zeros((images, 3, 3), np.int64)
    for image in areas:
        truth = truth_random.choice(3, 200, p=[0.6, 0.35, 0.05])
        easiness = truth_random.uniform(0.5, 1)
        guess = np.where(random.rand(200) < skill * easiness, truth, random.randint(0, 3, 200))
        for c in range(3):
            image[c] = ((truth == c) & (guess == c)).sum(), (truth == c).sum(), (guess == c).sum()
    return areas


def recorded(head: str) -> Images:
    """Return the counts of a model with a small ResNet-18 on CamVid's validation frames."""
    return read_images(DATA / f"images_{head}_camvid.npz")


@pytest.mark.parametrize("data", ["drawn", "recorded"])
@pytest.mark.parametrize("metric", ["mIoU", "mDice", "IoU.pole"])
def test_intervals_are_those_of_scipys_bootstrap(metric, data):
    stats = pytest.importorskip("scipy.stats")
    if data == "drawn":  # two seeds
        classes = CLASSES
        first, second = [
            [areas_of(10 * s + i, skill) for s in range(2)] for i, skill in ((1, 0.6), (2, 0.7))
        ]
    else:
        classes = recorded("fcn").classes
        first, second = [recorded("fcn").areas], [recorded("danet").areas]
    score = records.score_of(metric, classes)

    def difference(indices: np.ndarray) -> float:
        pairs = zip(first, second, strict=True)
        return np.mean([score(b[indices].sum(0)) - score(a[indices].sum(0)) for a, b in pairs])

    images = len(first[0])
    theirs = stats.bootstrap(
        (np.arange(images),),
        difference,
        n_resamples=4000,
        confidence_level=1 - 2 * expanded_share(stats, images),
        vectorized=False,
        method="percentile",
        random_state=1,
    ).confidence_interval
    draws = records.paired_draws(first, second, score, 4000)
    low, high = records.interval_of(draws, images)
    # Both draw 4,000 sets: the ends vary by about 3 % of the width.
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.08 * (high - low))
    assert np.array_equal(draws, records.paired_draws(first, second, score, 4000))
    assert not np.array_equal(draws, records.paired_draws(first, second, score, 4000, stream=1))


def expanded_share(stats, images: int) -> float:
    """Return the share below the interval of Hesterberg (2015)."""
    t = stats.t.ppf(0.975, images - 1)
    return stats.norm.cdf(-np.sqrt(images / (images - 1)) * t)


@pytest.mark.parametrize("images", [6, 10, 40, 1000])
def test_few_images_widen_an_interval(images):
    """With 8 images, a third of the percentile intervals' misses of equal models is left."""
    stats = pytest.importorskip("scipy.stats")
    share = expanded_share(stats, images)
    low, high = records.interval_of(np.linspace(0, 1, 100_001), images)
    assert (low, 1 - high) == pytest.approx((share, share), rel=0.04)
    assert records.interval_of(np.linspace(0, 1, 11), 5) is None


@pytest.mark.parametrize(("images", "most"), [(6, 0.11), (10, 0.09), (30, 0.08)])
def test_equal_models_are_seldom_distinguishable(images, most):
    """In one of twenty tables, as the interval says. 0.17, 0.10 and 0.07 without widening."""
    random, score, found = np.random.RandomState(0), records.score_of("mIoU", CLASSES), 0
    for _ in range(400):
        both = []
        truth = random.multinomial(300, [0.5, 0.3, 0.2], images)
        for _ in range(2):
            skill = random.uniform(0.3, 0.9, (images, 1))  # of an image; both models have the same
            hit = (truth * skill).astype(int)
            wrong = np.roll(truth - hit, 1, axis=1)  # a missed pixel gets the next class
            both.append(np.stack([hit, truth, hit + wrong], -1))
        draws = records.paired_draws(both[:1], both[1:], score, 500)
        low, high = records.interval_of(draws, images)
        found += not low <= 0 <= high
    assert 0.01 < found / 400 < most


def test_scores_are_of_sums_over_images():
    areas = np.array([[[8, 10, 10], [0, 0, 0]], [[2, 10, 4], [0, 0, 3]]])
    first, second = 100 * 10 / 24, 0.0
    assert records.score_of("mIoU", ["a", "b"])(areas.sum(0)) == pytest.approx((first + second) / 2)
    assert records.score_of("mIoU", ["a", "b"])(areas[0]) == pytest.approx(100 * 8 / 12)  # no b
    assert records.score_of("Dice.a", ["a", "b"])(areas.sum(0)) == pytest.approx(100 * 20 / 34)
    assert records.score_of("objects.a", ["a"])(np.array([3, 4, 6])) == pytest.approx(60)
    counts = np.array([[[3, 4, 6, 8], [0, 0, 0, 0]]])
    assert boundary_f1(counts)[0, 0] == pytest.approx(75) and np.isnan(boundary_f1(counts)[0, 1])


def run_of(model: str, seed: int, rate: float = 1.0) -> Run:
    folder = Path(f"runs/{model}/rate{rate}_seed{seed}")
    return Run(model, "d", seed, rate, Path("c.py"), folder, "iter_8.pth", {}, 8, False, (), False)


def runs_of(model: str, skill: float, seeds, names=None, data: int = 1) -> dict:
    found = {}
    for seed in seeds:
        areas = areas_of(100 * data + seed, skill)
        found[seed] = (
            run_of(model, seed),
            Images(names or [f"{i}.png" for i in range(40)], CLASSES, areas),
        )
    return found


def test_three_seeds_give_a_deviation_and_a_clear_difference_is_distinguishable():
    first = runs_of("a", 0.5, range(3))
    own = runs_of("b", 0.9, range(1, 4), data=2)
    record = records.statistics_of(own, first, "test", "mIoU").entries()
    scores = list(record["seeds"].values())
    assert record["deviation"] == pytest.approx(np.std(scores, ddof=1))
    of_first = records.statistics_of(first, {}, "test", "mIoU").entries()
    pairs = [record["seeds"][seed] - of_first["seeds"][seed] for seed in (1, 2)]
    assert record["difference"] == pytest.approx(np.mean(pairs))
    low, high = record["interval"]
    assert 0 < low < record["difference"] < high and record["distinguishable"]
    assert of_first["difference"] is of_first["interval"] is of_first["distinguishable"] is None
    assert table.difference_text(record).endswith("]")
    assert f"± {record['deviation']:.1f}" in table.score_text(record)


def test_two_seeds_give_no_deviation_and_equal_skill_is_not_distinguishable():
    first, own = runs_of("a", 0.7, range(2)), runs_of("b", 0.7, range(2), data=2)
    record = records.statistics_of(own, first, "test", "mIoU").entries()
    assert record["deviation"] is None and record["distinguishable"] is False
    assert table.difference_text(record).endswith("not distinguishable")
    assert "±" not in table.score_text(record) and "(" in table.score_text(record)


def test_tests_of_other_images_are_not_compared():
    first, own = runs_of("a", 0.7, [0]), runs_of("b", 0.7, [0], ["other.png"] * 40, data=2)
    record = records.statistics_of(own, first, "test", "mIoU")
    assert record.mean is not None and record.difference is None
    # Also if the data has changed between two seeds, of both models.
    first, own = runs_of("a", 0.7, [0, 1]), runs_of("b", 0.7, [0, 1], data=2)
    for tested in (first, own):
        tested[1] = (tested[1][0], tested[1][1]._replace(areas=first[1][1].areas[:30]))
    assert records.statistics_of(own, first, "test", "mIoU").difference is None
    assert records.statistics_of({}, first, "test", "mIoU").mean is None


def test_a_score_of_nothing_is_none():
    """No image has the class, and no model predicts it: NaN would count as distinguishable."""
    first, own = runs_of("a", 0.7, [0]), runs_of("b", 0.7, [0], data=2)
    for tested in (first, own):
        tested[0][1].areas[:, 1] = 0
    record = records.statistics_of(own, first, "test", "IoU.car").entries()
    assert record["seeds"] == {} and record["mean"] is record["distinguishable"] is None
    first[0][1].areas[0, 1, 2] = 1  # the first model predicts it once
    assert records.statistics_of(first, {}, "test", "IoU.car").mean == 0
    assert records.statistics_of(own, first, "test", "IoU.car").difference is None


def test_each_metric_has_its_own_counts(tmp_path, monkeypatch):
    """The name of one class is the beginning of another's, as `car` of `carpet`."""
    counts = {"objects.car": [1, 2, 2], "objects.carpet": [3, 4, 6], "boundary": [[1, 2, 1, 2]]}
    files = {"": None}
    for name, one in counts.items():
        files[name] = tmp_path / f"{name}.npy"
        np.save(files[name], [one])
    monkeypatch.setattr(Run, "files", lambda run, kind: files)
    images = Images(["0.png"], ["car"], np.array([[[8, 10, 10]]]))
    for metric, expected in (("objects.carpet", 60), ("objects.car", 50), ("boundary.car", 50)):
        found = records.statistics_of({0: (run_of("m", 0), images)}, {}, "test", metric)
        assert found.mean == pytest.approx(expected), metric


def test_the_mean_of_sets_is_a_plain_computation():
    """Two sets of other sizes; images of each set are drawn for both models, and means compared."""
    sizes, seeds, sets, plain = (40, 12), (0, 1, 2), [], []
    score = records.score_of("mIoU", CLASSES)
    for stream, size in enumerate(sizes):
        names = [f"{i}.png" for i in range(size)]
        first, own = {}, {}
        for seed in seeds:
            for tested, model, skill in ((first, "a", 0.6), (own, "b", 0.7)):
                areas = areas_of(10 * stream + 3 * seed + (model == "b"), skill, size)
                tested[seed] = (run_of(model, seed), Images(names, CLASSES, areas))
        sets.append(records.statistics_of(own, first, "test", "mIoU", stream))
        plain.append([[one[seed][1].areas for seed in seeds] for one in (first, own)])
    found = records.mean_of_sets(sets).entries()

    def difference(chosen: list[np.ndarray]) -> float:
        of_sets = []
        for (first, own), images in zip(plain, chosen, strict=True):
            pairs = zip(first, own, strict=True)
            of_sets.append(
                [float(score(b[images].sum(0)) - score(a[images].sum(0))) for a, b in pairs]
            )
        return float(np.mean(of_sets))

    assert found["difference"] == pytest.approx(difference([np.arange(size) for size in sizes]))
    scores = [[float(score(areas.sum(0))) for areas in own] for _, own in plain]
    assert [*found["seeds"].values()] == pytest.approx(np.mean(scores, axis=0))
    assert found["mean"] == pytest.approx(np.mean(scores))
    assert found["deviation"] == pytest.approx(np.std(np.mean(scores, axis=0), ddof=1))
    random = np.random.RandomState(1)
    draws = [difference([random.randint(0, n, n) for n in sizes]) for _ in range(2000)]
    low, high = records.interval_of(np.array(draws), min(sizes))
    assert found["interval"] == pytest.approx((low, high), abs=0.12 * (high - low))
    of_sets = [one.entries()["interval"] for one in sets]
    assert high - low < np.mean([upper - lower for lower, upper in of_sets])  # more images


def test_a_mean_of_sets_has_what_all_sets_have():
    first, own = runs_of("a", 0.7, [0, 1]), runs_of("b", 0.7, [1, 2], data=2)
    complete = records.statistics_of(own, first, "test", "mIoU")
    untested, apart = (
        records.statistics_of({}, first, "test", "mIoU"),
        complete._replace(draws=None),
    )
    assert records.mean_of_sets([complete, untested]) == ({}, None, None, None, 0)
    of_both = records.mean_of_sets([complete, apart])
    assert of_both.mean == complete.mean and of_both.difference is None
    other = complete._replace(seeds={2: 50.0, 3: 60.0})
    assert records.mean_of_sets([complete, other]).seeds.keys() == {2}
    fewer = complete._replace(images=5)
    record = records.mean_of_sets([complete, fewer]).entries()
    assert record["difference"] is not None and record["interval"] is None
    assert table.difference_text(record).endswith("(too few images)")


def test_the_best_rate_is_that_of_the_validations(monkeypatch):
    scores = {(1.0, 0): 70, (1.0, 1): 60, (0.25, 0): 66, (0.25, 1): 66}
    runs = [run_of("a", seed, rate) for rate, seed in scores]

    def read(folder, notes):
        (score,) = [scores[r.rate, r.seed] for r in runs if r.folder == folder]
        return {"mIoU": {4: 99.0, 8: score}}

    monkeypatch.setattr(records, "read_curves", read)
    monkeypatch.setattr(Run, "checkpoint", property(lambda run: checkpoints[run.rate, run.seed]))
    checkpoints = dict.fromkeys(scores, Path(__file__))
    assert [run.rate for run in records.best_runs(Mock(runs=runs), "d", "a")] == [0.25, 0.25]
    # A training that failed with a rate counts against it, whatever the others reach.
    checkpoints[0.25, 0] = Path("missing")
    assert [run.rate for run in records.best_runs(Mock(runs=runs), "d", "a")] == [1.0, 1.0]


def test_settings_that_differ_are_named():
    text = """
train_dataloader = dict(batch_size=4, dataset=dict(type="D", data_root="x", pipeline=[dict(a=1)]))
test_dataloader = dict(dataset=dict(type="D", data_root="x", pipeline=[]))
crop_size = (64, 64)
model = dict(backbone=dict(type="B", init_cfg=dict(type="Pretrained", checkpoint="w.pth")))
optim_wrapper = dict(type="OptimWrapper", optimizer=dict(type="AdamW", lr=0.1))
param_scheduler = [dict(type="PolyLR", begin=0, end=100, by_epoch=False)]
train_cfg = dict(max_iters=100)
runner_type = "DurableRunner"
"""
    first, same = (Config.fromstring(text, ".py") for _ in range(2))
    assert differing_settings({"a": first, "b": same}) == []
    other = Config.fromstring(text, ".py")
    other.train_dataloader.batch_size = 8
    other.auto_scale_lr = dict(base_batch_size=16)
    other.model.backbone.init_cfg = None
    other.crop_size = (96, 96)
    lines = differing_settings({"a": first, "b": other})
    assert "batch: a 4, b 8" in lines and "crop: a 64x64, b 96x96" in lines
    assert "starts from: a w.pth, b no file" in lines
    assert any(line.startswith("batch: 8") and "16" in line for line in lines)
    longer = Config.fromstring(text.replace("100", "200"), ".py")
    assert "iterations: a 100, b 200" in differing_settings({"a": first, "b": longer})
    assert differing_settings({"a": first, "b": longer}, has_budget=True) == []


def test_a_model_for_other_data_keeps_the_weight_of_no_object():
    """Of mmdet's MaskFormer, whose loss has a class more than the data."""
    cfg = Config.fromfile(CONFIGS / "ea_r18_shapes.py")
    of_data = copy.deepcopy(cfg)
    for stage in ("train", "val", "test"):
        two = dict(type="BaseSegDataset", metainfo=dict(classes=["a", "b"]), pipeline=[])
        of_data[f"{stage}_dataloader"].dataset = two
    loss = dict(type="mmdet.CrossEntropyLoss", class_weight=[1.0] * 6 + [0.1])
    cfg.model.decode_head = dict(type="MaskFormerHead", num_classes=6, loss_cls=loss)
    head = with_data(cfg, of_data).model.decode_head
    assert (head.num_classes, head.loss_cls.class_weight) == (2, [1.0, 1.0, 0.1])


def test_names_are_escaped_in_latex_and_html():
    record = {"mean": 50.0, "deviation": 1.0, "difference": None, "failed": {}}
    record |= {"seeds": {0: 49.0, 1: 50.0, 2: 51.0}, "interval": None, "distinguishable": None}
    record |= {"parameters": 10**6, "multiply_adds": 10**9, "seconds": 1.0, "mib": 1.0, "rate": 1.0}
    record |= {"iterations": 1000}
    names = ("a_b & <c>", "100 %_d")
    content = dict(
        plan=Mock(models=[names[0]], data=[names[1]]),
        columns=[names[1]],
        metrics=["mIoU"],
        cells={("mIoU", *names): record},
        notes=["a note"],
        seeds=[0, 1, 2],
    )
    folder = Path(table.__file__).parent
    tex = template("table.tex.j2", folder).render(**content)
    assert r"a\_b \& <c> & 1.00 & 1.00" in tex and r"100 \%\_d" in tex
    assert r"$50.0 \pm 1.0$" in tex
    more = {"curves": {names[1]: ""}, "worst": {names[1]: []}, "colors": ["#000"], "versions": []}
    page = template("table.html.j2", folder).render(**content, **more)
    assert "&lt;c&gt;" in page and "<c>" not in page and "± 1.0" in page
