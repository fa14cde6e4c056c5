"""`new_project` that is killed, or meets a full disk, at any of its file operations."""

import contextlib
import errno
import io
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from mmengine.config import Config
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext import commands
from mmseg_ext.checkpoint.files import read_checkpoint
from mmseg_ext.own_dataset import new_project as module
from mmseg_ext.own_dataset.starting_weights import STARTS
from tests.datasets.trees import random_image, save
from tests.durable.stops import forked
from tests.messages import check_message, lines_with


@pytest.fixture(autouse=True)
def _encoder(monkeypatch):
    """Start from weights that the project keeps, as an encoder's are; draw no picture."""
    weights = {"weight": torch.arange(2000.0)}
    backbone = f'{STARTS["scratch"].backbone}, contract_dilation="x"'  # a name in the config
    start = replace(STARTS["scratch"], weights=weights, backbone=backbone, terms="MIT")

    def starting_weights(name, encoder):
        return start if encoder else STARTS["scratch"]

    monkeypatch.setattr(module, "starting_weights", starting_weights)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).write_text("picture"))


def write_pair(folder: Path, number: int) -> None:
    """Write a photo and its mask; every second photo is on its side, so it is copied."""
    image = random_image(np.random.RandomState(number), (40, 30))
    exif = Image.Exif()
    exif[0x0112] = 6 if number % 2 else 1
    path = folder / f"images/{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, exif=exif)
    mask = np.zeros(image.shape[:2], np.uint8)
    mask[:10, :10] = 1 + number // 3  # the fourth photo shows a new class
    save(folder / f"masks/{number}.png", mask)


def new_project(folder: Path) -> str:
    """Make the project; return what it writes to stderr."""
    errors = io.StringIO()
    words = ["--images", folder / "images", "--masks", folder / "masks", "--encoder", "x"]
    with contextlib.redirect_stderr(errors):
        commands.run("new_project", [str(word) for word in (folder / "project", *words)])
    return errors.getvalue()


def run(folder: Path, is_update: bool, **stop) -> tuple[int, list, object]:
    """Make a project of three photos, or update it with a fourth one, in a forked process."""
    for number in range(3):
        write_pair(folder, number)
    if is_update:
        new_project(folder)
        write_pair(folder, 3)
    return forked(lambda: new_project(folder), folder / "project", **stop)


def state(folder: Path) -> dict[str, object]:
    """Return the files of the project, and what its datasets list; parts of files do not count."""
    project, found = folder / "project", {}
    for path in project.rglob("[!.]*"):
        name = str(path.relative_to(project))
        if path.is_symlink():
            found[name] = os.readlink(path).removeprefix(str(folder))
        elif path.is_file():
            found[name] = path.read_bytes().replace(str(folder).encode(), b"")
    # The order of its metadata is random.
    found["encoder.safetensors"] = str(read_checkpoint(project / "encoder.safetensors"))
    cfg = Config.fromfile(project / "config.py")
    for split in ("train", "val"):
        dataset = DATASETS.build(cfg[f"{split}_dataloader"].dataset)
        entries = map(dataset.get_data_info, range(len(dataset)))
        found[split] = sorted(Path(entry["img_path"]).name for entry in entries)
    return found


def assert_equal_after_a_further_run(folder: Path, complete: Path, operation: object) -> None:
    assert new_project(folder) == ""
    found, expected = state(folder), state(complete)
    differ = [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
    assert not differ, operation


def test_a_run_that_was_killed_at_the_files_of_its_config(tmp_path):
    """Also at the weights of an encoder, which the project keeps."""
    status, operations, errors = run(tmp_path / "complete", is_update=False)
    assert (status, errors) == (0, "")
    names = [Path(path).name for _, path in operations]
    first = next(i for i, name in enumerate(names) if "encoder.safetensors" in name)
    assert any("config.py" in name for name in names[first:])
    for at in range(first, len(operations)):
        folder = tmp_path / str(at)
        status, _, _ = run(folder, is_update=False, at=at, how="kill")
        assert status == -signal.SIGKILL
        assert_equal_after_a_further_run(folder, tmp_path / "complete", operations[at])


@pytest.mark.parametrize("has_links", [True, False])
def test_an_update_on_a_full_disk(has_links, tmp_path, monkeypatch):
    """Is one line, and changes nothing that the same command does not complete later."""
    if not has_links:
        monkeypatch.setattr(Path, "symlink_to", raise_not_supported)
    status, operations, errors = run(tmp_path / "complete", is_update=True)
    assert (status, errors) == (0, "")
    written = [at for at, (event, _) in enumerate(operations) if event in ("write", "os.symlink")]
    assert len(written) > 7
    for at in written:
        folder = tmp_path / str(at)
        _, _, errors = run(folder, is_update=True, at=at, how="full")
        check_message(str(errors).strip(), "No space left", where=f"mmseg_ext: {folder}/project")
        # Each label map is one of before or the new one.
        for path in folder.glob("project/data/annotations/**/[!.]*.png"):
            with Image.open(path) as image:
                image.load()
        assert_equal_after_a_further_run(folder, tmp_path / "complete", operations[at])


def test_weights_of_an_encoder_that_are_lost(tmp_path, capsys):
    """A further run with the encoder writes them; else it is a line, as it is for the training."""
    for number in range(3):
        write_pair(tmp_path, number)
    images, masks = tmp_path / "images", tmp_path / "masks"
    project = tmp_path / "project"
    module.new_project(project, images, masks=masks, encoder="x", start="scratch")
    weights = project / "encoder.safetensors"
    before = weights.stat().st_mtime_ns
    module.new_project(project, images, masks=masks, encoder="x", start="scratch")
    assert weights.stat().st_mtime_ns == before
    weights.unlink()
    for encoder in (None, "y"):
        made = module.new_project(project, images, masks=masks, encoder=encoder)
        notes = [str(note) for note in made.notes if str(weights) in str(note)]
        check_message("".join(notes), "is missing", where=weights, todo="--encoder")
    flags = ["--cfg-options", "train_cfg.max_iters=1"]
    capsys.readouterr()
    assert commands.run("train", [str(project / "config.py"), *flags]) == 1
    error = lines_with(capsys.readouterr().err, "cannot be loaded")
    check_message("".join(error), weights.name, todo="FILE")
    made = module.new_project(project, images, masks=masks, encoder="x", start="scratch")
    assert weights.exists() and not any(str(weights) in str(note) for note in made.notes)


def raise_not_supported(*_) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
