"""The CamVid table: its rows differ, and it compares them seed by seed."""

import json

from mmengine.config import ConfigDict

from benchmarks.camvid_rows import GROUPS, all_rows, table
from benchmarks.camvid_table import config_path, costs
from mmseg_ext import register_all_modules
from mmseg_ext.engine.config import load_config


def test_every_row_changes_what_it_says():
    """Options that miss the model would train the same head again."""
    register_all_modules()
    trained = {}
    for row in {row.name: row for row in all_rows()}.values():
        config = load_config(config_path(row), row.options)
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
    lines = table("camvid_heads", {"runs": runs, "costs": {}}).splitlines()
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    assert cells[:4] == ["PSP", "2", "62.0 (34.0-90.0)", "+4.0"]


def test_the_cost_of_a_row_is_its_own():
    """Two memories of 128 channels have 56 slots fewer."""
    register_all_modules()
    ea, ea_s8 = costs([row for row in all_rows() if row.name in ("ea", "ea_s8")], rounds=1).values()
    assert ea["parameters"] - ea_s8["parameters"] == 2 * 56 * 128
    # At the 23 x 30 positions of a frame, and composed with a 1x1 convolution of 128 channels.
    assert ea["multiply_adds"] - ea_s8["multiply_adds"] == 2 * 56 * 128 * (23 * 30 + 128)
    assert min(ea["ms"], ea_s8["ms"], ea["mib"], ea_s8["mib"]) > 0
