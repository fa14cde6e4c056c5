"""The CamVid table: its rows differ, and it compares them seed by seed."""

import json

from mmengine.config import ConfigDict

from benchmarks.camvid_rows import GROUPS, all_rows, table
from benchmarks.camvid_table import config_path
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
