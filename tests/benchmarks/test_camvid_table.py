"""The rows of the CamVid table differ."""

import json

from mmengine.config import ConfigDict

from benchmarks.camvid_rows import all_rows
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
