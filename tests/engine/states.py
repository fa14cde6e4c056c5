"""Compare runs bit by bit, with config parts that use random numbers and state."""

import json
from pathlib import Path

import torch

# Random draws in augmentation, dropout and shuffling, and two kinds of state besides the weights:
# momentum with a changing rate, and an average of the weights.
RANDOM = """
augmented = [
    *load[:2],
    dict(type="RandomResize", scale=(32, 32), ratio_range=(1.0, 1.5), keep_ratio=True),
    dict(type="RandomCrop", crop_size=(32, 32)),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    load[2],
]
train_dataloader["dataset"] = dict(**{**dataset, "pipeline": augmented})
train_dataloader["sampler"]["shuffle"] = True
model["decode_head"]["dropout_ratio"] = 0.5
optim_wrapper["optimizer"] = dict(type="AdamW", lr=0.01)
custom_hooks = [dict(type="EMAHook", momentum=0.1)]
"""
UNVALIDATED = """
val_cfg = val_dataloader = val_evaluator = None
default_hooks["checkpoint"]["save_best"] = None
"""


def logged(work_dir: Path, name: str = "loss") -> dict[int, dict[str, float]]:
    """Return iteration -> scalars, without times, that were logged with `name`; later lines win."""
    rows = {}
    for path in sorted(work_dir.glob("2*/vis_data/scalars.json")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if name in row:
                rows[row["step"]] = {k: v for k, v in row.items() if "time" not in k}
    return rows


def assert_same(one: object, two: object, where: str = "") -> int:
    """Compare nested containers of tensors bit by bit; return the number of compared values."""
    assert type(one) is type(two), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype and torch.equal(one, two), where
        return one.numel()
    if isinstance(one, dict):
        assert list(one) == list(two), where
        return sum(assert_same(one[k], two[k], f"{where}.{k}") for k in one)
    if isinstance(one, (list, tuple)):
        assert len(one) == len(two), where
        pairs = zip(one, two, strict=True)
        return sum(assert_same(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(pairs))
    assert one == two, where
    return 1


STATE = ("state_dict", "optimizer", "ema_state_dict", "param_schedulers", "processes")


def assert_same_runs(one: Path, two: Path, iteration: int) -> None:
    """Compare weights, optimizer, averages, schedulers, random state and logged losses."""
    ours, theirs = (
        torch.load(work / f"iter_{iteration}.pth", weights_only=True) for work in (one, two)
    )
    for key in STATE:
        assert assert_same(ours[key], theirs[key], key) > 0
    history = [c["message_hub"]["log_scalars"]["train/loss"] for c in (ours, theirs)]
    assert assert_same(*history, "history of the loss") > iteration
    assert logged(one) == logged(two)
    assert len(logged(two)) == iteration
