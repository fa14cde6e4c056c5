"""Operators are a budget: a GPU waits for Python, which starts each of them (docs/gpu.md)."""

import collections

import pytest

from benchmarks.operators import CONFIGS, Counts, count_prediction, count_training_steps
from mmseg_ext import register_all_modules
from mmseg_ext.engine.config import load_config
from mmseg_ext.inference.models import DEFAULT

# `python -m benchmarks.operators` prints these sums: a training step with TF32 and in bfloat16.
TRAINING_STEPS = {
    "ea_r101_ade20k_160k": {"TF32": 991, "bf16": 1236},
    "danet_r101_ade20k_160k": {"TF32": 1120, "bf16": 1389},
    "fpn_rmt_small_ade20k_80k": {"TF32": 2235, "bf16": 3990},
    "upernet_deepvit_s_ade20k_160k": {"TF32": 1363, "bf16": 1848},
    "upernet_lambda_r101_ade20k_160k": {"TF32": 1887, "bf16": 2200},
}
PREDICTION = 201  # of the default model
MARGIN = 0.03


def check_budget(name: str, counts: Counts, pinned: int) -> None:
    """Fail if there are more operators than pinned, or if the pin can be lowered."""
    operators = sum(counts.values(), collections.Counter())
    found = operators.total()
    assert found <= (1 + MARGIN) * pinned, (
        f"{name}: {found} operators instead of {pinned}; look for loops, casts and copies in "
        f"{operators.most_common(20)}"
    )
    assert found >= (1 - MARGIN) * pinned, f"{name}: lower the pin from {pinned} to {found}"


@pytest.fixture(autouse=True)
def _registered():
    register_all_modules()


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_training_step(name):
    for precision, counts in count_training_steps(load_config(name)).items():
        check_budget(f"{name}, {precision}", counts, TRAINING_STEPS[name][precision])


def test_a_prediction():
    check_budget(DEFAULT, count_prediction(load_config(DEFAULT)), PREDICTION)


@pytest.mark.parametrize(("found", "passes"), [(96, False), (97, True), (103, True), (104, False)])
def test_counts_may_differ_by_three_per_cent(found, passes):
    counts = {
        "forward": collections.Counter({"add": found - 50}),
        "backward": collections.Counter({"add": 50}),
    }
    if passes:
        check_budget("model", counts, 100)
    else:
        with pytest.raises(AssertionError, match=f"model: .*{found}"):
            check_budget("model", counts, 100)
