"""A checkpoint is whole or not there, and a resume finds a whole one."""

import os
import re
import resource

import pytest
import torch
from mmengine.config import Config

from mmseg_ext.checkpoint import read_state_dict
from mmseg_ext.checkpoint.files import read_checkpoint, write_weights
from mmseg_ext.durable.work_dir import newest_complete
from mmseg_ext.errors import CheckpointError
from tests.engine.runs import log_text, train_here, write_config
from tests.engine.states import UNVALIDATED
from tests.messages import check_message, raises_message, resumed_iterations


def test_a_flipped_bit_does_not_match_the_hash_in_the_name(tmp_path):
    """`.safetensors` has no checksums. mmsegmentation names a `.pth` by another file's hash."""
    weights = {"w": torch.arange(1000.0)}
    paths = [
        write_weights(weights, tmp_path / f"a.{kind}", hash_in_name=True)
        for kind in ("safetensors", "pth")
    ]
    for path in paths:
        assert torch.equal(read_state_dict(path)["w"], weights["w"])
    data = bytearray(paths[0].read_bytes())
    data[-1] ^= 64  # moves 999 to 3e-36
    paths[0].write_bytes(data)
    with pytest.raises(CheckpointError, match=f"^{paths[0]}: .*SHA-256.*{paths[0].stem[-8:]}.*$"):
        read_checkpoint(paths[0])
    read_checkpoint(paths[0], mmap=True)
    changed = paths[0].rename(tmp_path / "changed.safetensors")
    assert read_state_dict(changed)["w"][-1] != 999
    renamed = paths[1].rename(tmp_path / "a-01234567.pth")
    assert read_state_dict(renamed)["w"][-1] == 999


def test_a_date_in_the_name_is_no_hash(tmp_path):
    """Other digits are compared: two of a hundred hashes have only digits."""
    path = write_weights({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    for digits, date in (
        ("20251129", True),
        ("19991231", True),
        ("20251329", False),
        ("20251132", False),
        ("21000101", False),
        ("00012000", False),
        ("2025112f", False),
    ):
        path = path.rename(tmp_path / f"model-{digits}.safetensors")
        if date:
            assert torch.equal(read_state_dict(path)["w"], torch.ones(2))
            continue
        with raises_message(CheckpointError, digits, where=path, todo="rename"):
            read_state_dict(path)


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_broken_file_is_named_and_the_one_before_taken(tmp_path, damage):
    for step in (4, 8, 12):
        torch.save({"step": step}, tmp_path / f"iter_{step}.pth")
        os.utime(tmp_path / f"iter_{step}.pth", (step, step))
    last = tmp_path / "iter_12.pth"
    (tmp_path / "last_checkpoint").write_text(str(last))
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    if damage == "gone":
        last.unlink()
    torch.save({}, tmp_path / "best_mIoU_iter_16.pth")
    (tmp_path / "iter_20.pth").mkdir()
    path, problems = newest_complete(Config(dict(work_dir=str(tmp_path))))
    assert path == tmp_path / "iter_8.pth"
    assert len(problems) == 1 and str(last) in problems[0]


def test_a_full_disk_ends_in_one_message_with_nothing_lost(tmp_path):
    """Files of this process can grow to 300 kB, and a checkpoint takes 1.5 MB."""
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    train_here(config, work, "train_cfg.max_iters=4")
    before = (work / "iter_4.pth").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        with pytest.raises(CheckpointError) as end:
            train_here(config, work, "train_cfg.max_iters=8", flags=("--resume",))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    check_message(end.value, "(File too large)", where=work / "iter_8.pth", todo="--resume")
    names = [p.name for pattern in ("*.pth", ".*.part*") for p in work.glob(pattern)]
    assert names == ["iter_4.pth"]
    assert (work / "iter_4.pth").read_bytes() == before
    train_here(config, work, "train_cfg.max_iters=8", flags=("--resume",))
    assert newest_complete(Config(dict(work_dir=str(work)))) == (work / "iter_8.pth", [])

    os.truncate(work / "iter_8.pth", 1000)  # and a damaged file is passed over, with a warning
    train_here(config, work, "train_cfg.max_iters=5", flags=("--resume",))
    text = log_text(work)
    assert re.search(r"WARNING - \S+iter_8.pth: ", text)
    assert resumed_iterations(text) == [4, 4, 4]
