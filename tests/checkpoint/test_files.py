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


def test_checkpoints_of_other_runners_have_the_time_of_their_files(tmp_path, monkeypatch):
    for i, name in enumerate(("iter_4.pth", "iter_8.pth", "iter_6.pth")):
        torch.save({"meta": {}, "state_dict": {}}, tmp_path / name)
        os.utime(tmp_path / name, (1e9 + i, 1e9 + i))
    assert best_checkpoint(tmp_path).name == "iter_6.pth"
    (tmp_path / "work").mkdir()
    assert best_checkpoint(tmp_path / "empty") is best_checkpoint(tmp_path / "work") is None
    (tmp_path / "work/last_checkpoint").write_text(f"{tmp_path}/iter_8.pth\n")  # with `out_dir`
    assert best_checkpoint(tmp_path / "work").name == "iter_6.pth"
    monkeypatch.chdir(tmp_path.parent)
    (tmp_path / "work/last_checkpoint").write_text(f"{tmp_path.name}/iter_8.pth")
    assert best_checkpoint(tmp_path / "work").name == "iter_6.pth"
    monkeypatch.chdir(tmp_path)
    for text in ("iter_8.pth", ""):
        (tmp_path / "work/last_checkpoint").write_text(text)
        assert best_checkpoint(tmp_path / "work") is None


def test_the_best_checkpoint_of_an_earlier_run_is_not_that_of_the_last_one(tmp_path):
    """A new training in the same folder has no best checkpoint before its first validation."""
    files = {"best_mIoU_iter_9.pth": ("a", 1.0), "iter_10.pth": ("a", 2.0)}
    for name, (run, saved_at) in files.items():
        torch.save({"meta": {"run": run, "saved_at": saved_at}}, tmp_path / name)
    assert best_checkpoint(tmp_path).name == "best_mIoU_iter_9.pth"
    torch.save({"meta": {"run": "b", "saved_at": 3.0}}, tmp_path / "iter_2.pth")
    assert best_checkpoint(tmp_path).name == "iter_2.pth"
    torch.save({"meta": {"run": "b", "saved_at": 4.0}}, tmp_path / "best_mIoU_iter_3.pth")
    torch.save({"meta": {"run": "b", "saved_at": 5.0}}, tmp_path / "iter_4.pth")
    assert best_checkpoint(tmp_path).name == "best_mIoU_iter_3.pth"
