"""Views of test-time augmentation that training does not show."""

import pytest
from mmengine.config import Config

from mmseg_ext.engine.test_time_views import merging_model, unseen_views
from tests.configs import EXPERIMENTS, load


def config(training: list[dict], views: list[dict], wrap=lambda dataset: dataset) -> Config:
    """Return a config that trains and tests with these transforms."""
    dataset = wrap({"type": "BaseSegDataset", "pipeline": training})
    tta = [{"type": "TestTimeAug", "transforms": [[view] for view in views]}]
    return Config({"train_dataloader": {"dataset": dataset}, "tta_pipeline": tta})


def flip(prob, direction="horizontal", **more) -> dict:
    return {"type": "RandomFlip", "prob": prob, "direction": direction, **more}


def resize(factor: float) -> dict:
    return {"type": "Resize", "scale_factor": factor, "keep_ratio": True}


RANGE = {"type": "RandomResize", "scale": (64, 64), "ratio_range": (0.5, 2.0)}
RATIOS = {"type": "RandomRatioScale", "ratios": [0.5, 1.0, 2.0]}
SIZES = {"type": "RandomChoiceResize", "scales": [32, 64]}
TURN = {"type": "RandomRotate", "prob": 1.0, "degree": 90}
# training, views, words of the warning; none for ()
CASES = {
    "a flip": ([], [flip(0.0), flip(1.0)], ("horizontal flips",)),
    "a flip that training has": ([flip(0.5)], [flip(0.0), flip(1.0)], ()),
    "a flip that training turns off": ([flip(0)], [flip(1.0)], ("horizontal flips",)),
    "another direction": ([flip(0.5)], [flip(1.0), flip(1.0, "vertical")], ("no vertical flips,",)),
    "several directions": (
        [flip([0.2, 0.2], ["horizontal", "vertical"])],
        [flip(1.0, "vertical")],
        (),
    ),
    "inside another transform": (
        [{"type": "RandomApply", "transforms": [flip(0.5)]}],
        [flip(1.0)],
        (),
    ),
    "turns with flips": ([{"type": "RandomRotFlip"}], [flip(1.0, "vertical")], ()),
    "scales": ([], [resize(1.25), resize(0.5)], ("scale_factor 0.5,",)),
    "scales of smaller images": ([resize(0.5)], [resize(0.375), resize(0.625)], ()),
    "scales of training": ([RATIOS], [resize(0.5), resize(1.75)], ()),
    "a larger scale": ([RATIOS], [resize(3.5)], ("scale_factor 3.5",)),
    "pixels": ([RANGE], [{"type": "Resize", "scale": (48, 32)}], ()),
    "more pixels": ([RANGE], [{"type": "Resize", "scale": (256, 64)}], ("scale 256",)),
    "a factor of pixels": ([RANGE], [resize(9.0)], ()),
    "sizes in pixels": ([SIZES], [resize(2.5)], ()),
    "a turn": ([flip(0.5)], [TURN], ("RandomRotate",)),
    "a turn of training": ([TURN], [TURN], ()),
}


@pytest.mark.parametrize("case", CASES)
def test_views_that_training_does_not_show(case):
    training, views, words = CASES[case]
    line = unseen_views(config([{"type": "LoadImageFromFile"}, *training], views))
    assert all(word in line for word in words)
    assert bool(line) == bool(words)


def test_no_config_warns_of_its_own_views():
    for name, path in EXPERIMENTS.items():
        assert unseen_views(load(path)) == "", name


def test_classes_that_a_flip_exchanges():
    """Also in a dataset inside another one; a config for testing only has none."""
    hands = [flip(0.5, swap_seg_labels=[(1, 2)])]
    wrapped = config(hands, [], lambda dataset: {"type": "RepeatDataset", "dataset": dataset})
    assert merging_model(wrapped)["swap_seg_labels"] == [(1, 2)]
    wrapped.tta_model = {"type": "SegTTAModel"}  # which does not take them
    assert merging_model(wrapped) == {"type": "SegTTAModel"}
    plain = {"type": "StreamingSegTTAModel"}
    assert merging_model(config([flip(0.5)], [])) == merging_model(Config({})) == plain
    assert unseen_views(Config({})) == ""
