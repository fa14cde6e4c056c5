"""The command `prepare` on a small CamVid, and the dataset that reads the result."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext.commands.prepare import main


def write_pair(root: Path, split: str, name: str, label: np.ndarray, suffix: str = ".png"):
    rng = np.random.default_rng(len(name))
    image = rng.integers(0, 256, (*label.shape, 3), dtype=np.uint8)
    for folder, array, end in ((split, image, suffix), (f"{split}annot", label, ".png")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(root / folder / f"{name}{end}")
    return image


@pytest.fixture
def source(tmp_path):
    label = np.arange(12, dtype=np.uint8).repeat(4).reshape(6, 8)
    image = write_pair(tmp_path / "in", "train", "a", label)
    write_pair(tmp_path / "in", "train", "bb", label[::-1].copy(), suffix=".jpg")
    write_pair(tmp_path / "in", "val", "ccc", label)
    return tmp_path / "in", image, label


def prepare(folder: Path) -> int:
    return main(["camvid", str(folder), str(folder.parent / "out")])


def test_converts_and_reads(source, tmp_path, capsys):
    """A second run writes only the pairs that are missing."""
    folder, image, label = source
    assert prepare(folder) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out: train 2, val 1\n"
    settings = dict(type="CamVidDataset", data_root=str(tmp_path / "out"))
    settings["data_prefix"] = dict(img_path="images/train", seg_map_path="annotations/train")
    settings["pipeline"] = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations")]
    dataset = DATASETS.build(settings)
    assert len(dataset) == 2 and len(dataset.metainfo["classes"]) == 11
    assert np.sum(dataset.metainfo["palette"], 0).tolist() == [1148, 936, 1182]
    assert np.array_equal(dataset[0]["img"], image[..., ::-1])  # BGR
    assert np.array_equal(dataset[0]["gt_seg_map"], np.where(label == 11, 255, label))

    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.png")}
    assert len(written) == 6
    first, *kept = sorted(written)
    first.unlink()
    prepare(folder)
    kept = [path for path in kept if path.stem != first.stem]
    assert first.is_file() and all(path.stat().st_mtime_ns == written[path] for path in kept)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f.rename(f.parent / "moved"), "none of the folders train, val, test"),
        (lambda f: (f / "valannot/ccc.png").unlink(), "valannot/ccc.png: there is no such file"),
        (lambda f: shutil.rmtree(f) or (f / "train").mkdir(parents=True), "train: has no image"),
        (
            lambda f: write_pair(f, "val", "ccc", np.full((6, 8), 12, np.uint8)),
            "valannot/ccc.png: values outside the 12 classes: 12 (48 pixels)",
        ),
    ],
)
def test_bad_sources_are_named(source, damage, message, capsys):
    folder, _, _ = source
    damage(folder)
    assert prepare(folder) == 1
    assert message in capsys.readouterr().err
    assert not list(folder.parent.glob("out/*/val/*"))
