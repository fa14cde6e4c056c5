"""Which checkpoint of a run is the newest."""

import os

import pytest
import torch

from mmseg_ext.checkpoint.files import best_checkpoint


@pytest.mark.parametrize("prefix", ["", "best_mIoU_"])
def test_the_newest_checkpoint_is_that_saved_last_also_in_a_copy(tmp_path, prefix):
    """Tools copy files in any order, and some with the time of the copy."""
    for i, step in enumerate((300, 100, 200)):
        path = tmp_path / f"{prefix}iter_{step}.pth"
        torch.save({"meta": {"saved_at": 1e9 + step}, "state_dict": {}}, path)
        os.utime(path, (2e9 + i, 2e9 + i))
    assert best_checkpoint(tmp_path).name == f"{prefix}iter_300.pth"


def test_checkpoints_of_other_runners_have_the_time_of_their_files(tmp_path):
    for i, name in enumerate(("iter_4.pth", "iter_8.pth", "iter_6.pth")):
        torch.save({"meta": {}, "state_dict": {}}, tmp_path / name)
        os.utime(tmp_path / name, (1e9 + i, 1e9 + i))
    assert best_checkpoint(tmp_path).name == "iter_6.pth"
    assert best_checkpoint(tmp_path / "empty") is None
