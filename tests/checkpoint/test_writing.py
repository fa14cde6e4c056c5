"""A checkpoint is whole or not there, the older goes after the newer, resume finds a whole one."""

import os
import re
import resource
import signal
import time
from pathlib import Path

import pytest
import torch

from mmseg_ext.atomic_write import remove_parts, write_text
from mmseg_ext.checkpoint.resuming import newest_whole
from mmseg_ext.checkpoint.safe_reading import read_checkpoint
from mmseg_ext.checkpoint.writing import write_checkpoint
from mmseg_ext.commands.train import main as train
from mmseg_ext.errors import BrokenCheckpoint, CheckpointError
from tests.engine.runs import run_tool, write_config
from tests.engine.states import UNVALIDATED, assert_same


def content(step: int) -> dict:
    return {"step": step, "weights": torch.full((250_000,), float(step))}


def fill(folder: Path, steps=(4, 8, 12)) -> None:
    for step in steps:
        write_checkpoint(content(step), folder / f"iter_{step}.pth")
        os.utime(folder / f"iter_{step}.pth", (step, step))
    write_text(str(folder / f"iter_{steps[-1]}.pth"), folder / "last_checkpoint")


def save_for_ever(folder: Path, step: int) -> None:
    """What a training does with its checkpoints, and nothing else."""
    while True:
        step += 1
        fill(folder, (step,))
        (folder / f"iter_{step - 2}.pth").unlink(missing_ok=True)


def test_killed_while_saving_many_times_there_is_always_a_whole_one(tmp_path):
    """SIGKILL at random moments of a process that does nothing but save; it never goes back."""
    step, cut = 0, 0
    begin = time.perf_counter()
    fill(tmp_path / "measured", (1,))
    seconds = time.perf_counter() - begin
    delays = torch.rand(40, generator=torch.Generator().manual_seed(0)) * 4 * seconds
    started, start = os.pipe()
    for delay in delays.tolist():
        child = os.fork()
        if child == 0:
            try:
                os.write(start, b"1")
                save_for_ever(tmp_path, step)
            finally:
                os._exit(1)
        os.read(started, 1)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        cut += len(list(tmp_path.glob(".*.part*")))
        remove_parts(tmp_path)
        path, problems = newest_whole(tmp_path)
        assert problems == []
        if path is None:
            assert step == 0
            continue
        found = read_checkpoint(path)
        assert found["step"] >= step
        step = found["step"]
        assert_same(found, content(step))
    assert step > 10
    assert cut > 0  # some were killed in the middle of a file


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.004, 0.02])
def test_a_training_killed_while_saving_resumes(tmp_path, delay):
    """From iteration 4 or 8, whichever is whole; nothing is left of the file that was cut off."""
    hook = f"custom_hooks = [dict(type='KillWhileSaving', iteration=8, delay={delay})]\n"
    arguments = ["--work-dir", tmp_path / "work", "--cfg-options", "train_cfg.max_iters=10"]
    killed = run_tool("train.py", write_config(tmp_path, hook), *arguments)
    assert killed.returncode == -9
    assert (tmp_path / "work/iter_4.pth").is_file()
    config = write_config(tmp_path, name="resumed.py")
    resumed = run_tool("train.py", config, "--resume", *arguments)
    assert resumed.returncode == 0, resumed.stderr
    assert (tmp_path / "work/iter_10.pth").is_file()
    assert not list((tmp_path / "work").glob(".*.part*"))


@pytest.mark.parametrize("damage", ["half", "empty", "flipped", "gone", "text"])
def test_a_broken_file_is_named_and_the_one_before_taken(tmp_path, damage):
    fill(tmp_path)
    last = tmp_path / "iter_12.pth"
    data = last.read_bytes()
    if damage == "gone":
        last.unlink()
    else:
        middle = len(data) // 2
        last.write_bytes(
            {
                "half": data[:middle],
                "empty": b"",
                "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "text": b"no checkpoint",
            }[damage]
        )
    path, problems = newest_whole(tmp_path)
    assert path == tmp_path / "iter_8.pth"
    assert len(problems) == 1 and str(last) in problems[0]


def test_every_single_flipped_bit_is_noticed(tmp_path):
    """In the tensors: elsewhere the file stops being readable, or means the same."""
    path = tmp_path / "a.pth"
    write_checkpoint({"weights": torch.arange(8.0)}, path)
    data = path.read_bytes()
    start = data.index(torch.arange(8.0).numpy().tobytes())
    for bit in range(0, 8 * 32, 5):
        flipped = bytearray(data)
        flipped[start + bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(BrokenCheckpoint):
            read_checkpoint(path)
    path.write_bytes(data)
    assert_same(read_checkpoint(path), {"weights": torch.arange(8.0)})


def test_a_changed_content_with_the_old_checksum_is_broken(tmp_path):
    """What no container format notices: a file rewritten without its checksum."""
    path = tmp_path / "a.pth"
    write_checkpoint({"weights": torch.zeros(4), "step": 1}, path)
    raw = torch.load(path, weights_only=True)
    raw["step"] = 2
    torch.save(raw, path)
    with pytest.raises(BrokenCheckpoint, match="checksum"):
        read_checkpoint(path)


def test_no_whole_checkpoint_is_an_error_that_names_all(tmp_path):
    fill(tmp_path)
    for path in tmp_path.glob("*.pth"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError) as error:
        newest_whole(tmp_path)
    for part in ("iter_4.pth", "iter_8.pth", "iter_12.pth", "--cfg-options load_from=FILE"):
        assert part in str(error.value)
    assert newest_whole(tmp_path / "nowhere") == (None, [])


def test_a_moved_work_directory_is_found(tmp_path):
    (tmp_path / "old").mkdir()
    fill(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    assert newest_whole(tmp_path / "new") == (tmp_path / "new/iter_12.pth", [])


def test_objects_are_not_written(tmp_path):
    with pytest.raises(TypeError, match="PosixPath"):
        write_checkpoint({"path": tmp_path}, tmp_path / "a.pth")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- in training


@pytest.fixture
def limited():
    """Files of this process can grow to 300 kB: as a disk that is full, for its checkpoints."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def run(config: Path, work: Path, *options: str, flags=()) -> None:
    name = f"visualizer.name={work.name}{len(flags)}{len(options)}"
    train([str(config), "--work-dir", str(work), *flags, "--cfg-options", name, *options])


def test_a_full_disk_ends_in_one_message_with_nothing_lost(tmp_path, limited):
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    run(config, work, "train_cfg.max_iters=4")
    before = (work / "iter_4.pth").read_bytes()
    limited(300_000)  # a checkpoint takes 1.5 MB
    with pytest.raises(SystemExit) as end:
        run(config, work, "train_cfg.max_iters=8", flags=("--resume",))
    limited(resource.RLIM_INFINITY)
    assert re.fullmatch(
        r"mmseg_ext: \S+/iter_8.pth cannot be written: File too large; the checkpoints written "
        r"before are untouched, --resume goes on from the last of them",
        end.value.code,
    )
    assert [p.name for pattern in ("*.pth", ".*.part*") for p in work.glob(pattern)] == [
        "iter_4.pth"
    ]
    assert (work / "iter_4.pth").read_bytes() == before
    assert (work / "last_checkpoint").read_text().endswith("iter_4.pth")
    run(config, work, "train_cfg.max_iters=8", flags=("--resume",))
    assert newest_whole(work) == (work / "iter_8.pth", [])


def test_an_unwritable_folder_ends_in_one_message(tmp_path):
    """A folder bars the name of the second checkpoint: permissions do not stop root."""
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    (work / "iter_8.pth/bar").mkdir(parents=True)
    with pytest.raises(SystemExit) as end:
        run(config, work)
    assert re.fullmatch(
        r"mmseg_ext: \S+/iter_8.pth cannot be written: Is a directory; the checkpoints written "
        r"before are untouched, --resume goes on from the last of them",
        end.value.code,
    )
    assert not list(work.glob(".*.part*"))
    (work / "iter_8.pth/bar").rmdir()
    (work / "iter_8.pth").rmdir()
    assert newest_whole(work) == (work / "iter_4.pth", [])


def test_the_older_one_goes_after_the_newer_is_whole(tmp_path, monkeypatch):
    """At every removal, the checkpoint that `last_checkpoint` names is newer and whole."""
    config, work = (
        write_config(tmp_path, "model['test_cfg'] = dict(mode='whole')\n"),
        tmp_path / "w",
    )
    removed, unlink = [], Path.unlink

    def watched(path, missing_ok=False):
        if path.suffix == ".pth" and path.exists():
            kept = newest_whole(work)[0]
            assert kept is not None and kept != path
            assert kept.stat().st_mtime_ns >= path.stat().st_mtime_ns
            removed.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    options = ["max_keep_ckpts=2", "interval=2"]
    run(
        config,
        work,
        "train_cfg.val_interval=4",
        *(f"default_hooks.checkpoint.{o}" for o in options),
    )
    assert [n for n in removed if n.startswith("iter")] == [f"iter_{i}.pth" for i in (2, 4, 6, 8)]
    kept = {p.name for p in work.glob("*.pth")}
    best = {n for n in kept if n.startswith("best_mIoU")}
    assert kept - best == {"iter_10.pth", "iter_12.pth"}
    assert len(best) == 1


def test_resume_takes_the_one_before_a_broken_one_and_says_so(tmp_path):
    config, work = write_config(tmp_path, UNVALIDATED), tmp_path / "work"
    run(config, work)
    whole = read_checkpoint(work / "iter_12.pth")
    data = (work / "iter_12.pth").read_bytes()
    (work / "iter_12.pth").write_bytes(data[: len(data) // 2])
    (work / ".iter_16.pth.part.pth").write_bytes(b"left behind")
    run(config, work, flags=("--resume",))
    text = "".join(p.read_text() for p in work.glob("2*/*.log"))
    assert re.search(r"iter_12.pth: is truncated .*; taking the checkpoint be", text)
    assert "resumed epoch: 0, iter: 8" in text
    again = read_checkpoint(work / "iter_12.pth")
    for key in ("state_dict", "optimizer", "processes"):
        assert_same(again[key], whole[key])
    assert not list(work.glob(".*.part*"))
