"""The CamVid table: its rows differ, and their numbers are those of the tools."""

import json

import pytest
from mmengine.config import Config, ConfigDict

from benchmarks.camvid_rows import GROUPS, Row, all_rows, head_table
from benchmarks.camvid_table import ROOT, costs, run
from mmseg_ext import register_all_modules
from mmseg_ext.engine import launch
from tests.datasets.trees import make_tree

ITERATIONS = 8


def test_every_row_changes_what_it_says():
    """Options that miss the model would train the same head again."""
    register_all_modules()
    trained = {}
    for row in {row.name: row for row in all_rows()}.values():
        config = launch.load_settings(str(ROOT / "configs" / f"{row.config}.py"), row.options)
        parts = (config.model, config.optim_wrapper, config.train_dataloader)
        trained[row.name] = json.dumps([ConfigDict(part).to_dict() for part in parts])
    assert len(set(trained.values())) == len(trained)


def test_differences_are_of_the_same_seeds():
    fcn, other = GROUPS["heads"][:2]
    scores = [(fcn, {0: 30.0, 1: 20.0}), (other, {0: 34.0, 2: 90.0})]
    runs = [
        {"row": row.name, "seed": seed, "miou": miou, "far": 5.0}
        for row, by_seed in scores
        for seed, miou in by_seed.items()
    ]
    lines = head_table({"runs": runs, "costs": {}}).splitlines()
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    assert cells[:4] == ["PSP", "2", "62.0 (34.0 to 90.0)", "+4.0"]


def tiny(tree, **options) -> Row:
    """FCN on a miniature of CamVid, in crops of 32x32."""
    crop = (32, 32)
    pipeline = Config.fromfile(ROOT / "configs/fcn_r18_camvid_8k.py").train_pipeline
    pipeline = [{**t, "crop_size": crop} if t["type"] == "RandomCrop" else t for t in pipeline]
    return Row(
        "fcn",
        "FCN",
        "fcn_r18_camvid_8k",
        {
            "train_dataloader.dataset.data_root": str(tree.root),
            "train_dataloader.dataset.pipeline": pipeline,
            "test_dataloader.dataset.data_root": str(tree.root),
            "model.data_preprocessor.size": crop,
            "model.backbone.base_channels": 4,
            "model.backbone.stem_channels": 4,
            "model.decode_head.in_channels": 32,
            "param_scheduler.0.end": 2,
            "param_scheduler.1.begin": 2,
            **options,
        },
    )


def test_the_scores_are_those_of_the_test_tool(tmp_path):
    row = tiny(make_tree("camvid", tmp_path / "camvid"))
    numbers = run(row, 1, ITERATIONS, tmp_path / "run")
    path = str(ROOT / "configs" / f"{row.config}.py")
    workers = {"num_workers": 0, "persistent_workers": False}
    options = row.options | {f"test_dataloader.{key}": value for key, value in workers.items()}
    checkpoint = str(tmp_path / f"run/iter_{ITERATIONS}.pth")
    metrics = launch.build_test_runner(path, checkpoint, options, str(tmp_path / "test")).test()
    assert metrics["mIoU"] == pytest.approx(numbers["miou"], abs=0.006)
    assert metrics["aAcc"] == pytest.approx(numbers["accuracy"], abs=0.006)


def test_the_cost_of_a_row_is_its_own():
    register_all_modules()
    rows = {row.name: row for row in all_rows() if row.name in ("ea", "ea_s8")}
    table = costs(list(rows.values()), rounds=1)
    # Two memories of 128 channels with 56 slots fewer, applied at the 23 x 30 positions of a frame;
    # before that each is composed with a 1x1 convolution of 128 channels.
    weights = 2 * 56 * 128
    assert table["ea"]["parameters"] - table["ea_s8"]["parameters"] == weights
    fewer = table["ea"]["multiply_adds"] - table["ea_s8"]["multiply_adds"]
    assert fewer == weights * (23 * 30 + 128)
    assert all(table[name]["ms"] > 0 and table[name]["mib"] > 0 for name in rows)
