"""ShapesDataset: determinism, disjoint splits, the folder on disk, and its pixels."""

import hashlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext.datasets import shapes
from mmseg_ext.datasets.shapes import FORMS, METAINFO, Recipe, generate, render
from tests.messages import raises_message

RECIPE = Recipe(seed=3, train=6, val=4, size=64)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "shapes"
    generate(path, RECIPE)
    return path


def digest(path: Path) -> str:
    files = sorted(p for p in path.rglob("*") if p.is_file())
    content = b"".join(str(p.relative_to(path)).encode() + p.read_bytes() for p in files)
    return hashlib.sha256(content).hexdigest()


def test_scenes_of_this_version():
    """If these numbers change, VERSION must change."""
    assert Recipe() == Recipe(seed=0, train=640, val=128, size=128)
    images, labels = zip(*(render(0, i, 64) for i in range(8)), strict=True)
    means = [127.92, 134.0, 126.33, 113.24, 105.29, 106.55, 165.98, 130.96]
    assert [image.mean() for image in images] == pytest.approx(means, abs=0.02)
    deviations = [63.42, 52.7, 64.64, 55.06, 49.06, 68.27, 48.3, 42.4]
    assert [image.std() for image in images] == pytest.approx(deviations, abs=0.02)
    areas = np.bincount(np.ravel(labels), minlength=6)
    assert areas.tolist() == [24000, 1796, 3261, 1510, 199, 2002]
    assert np.sum(METAINFO["palette"], 0).tolist() == [808, 719, 743]
    assert (render(1, 0, 64)[0] != images[0]).mean() > 0.5


def test_another_recipe_and_a_foreign_folder_are_refused(root, tmp_path):
    with pytest.raises(FileExistsError, match=r"data_root.*'seed': 3.*'seed': 4"):
        generate(root, Recipe(seed=4, train=6, val=4, size=64))
    (tmp_path / "mine.txt").write_text("keep me")
    with raises_message(FileExistsError, "ShapesDataset", where="data_root="):
        generate(tmp_path, RECIPE)
    assert (tmp_path / "mine.txt").read_text() == "keep me"


def test_interrupted_generation_leaves_no_dataset(root, tmp_path, monkeypatch):
    """A second run writes the same bytes, and a third run nothing."""
    scenes = [render(3, i, 64) for i in range(4)]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shapes, "render", Mock(side_effect=[*scenes, KeyboardInterrupt]))
        generate(tmp_path / "shapes", RECIPE)
    assert not (tmp_path / "shapes").exists()
    generate(tmp_path / "shapes", RECIPE)
    assert digest(tmp_path / "shapes") == digest(root)
    assert not list(tmp_path.glob("*.part"))
    monkeypatch.setattr(shapes, "render", Mock(side_effect=AssertionError))
    generate(tmp_path / "shapes", RECIPE)


def test_only_one_of_two_processes_writes(tmp_path):
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(generate, [tmp_path / "shapes"] * 2, [RECIPE] * 2))
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["shapes"]


def test_splits_are_disjoint_and_voc_layout(root):
    images = {path.stem: path.read_bytes() for path in (root / "JPEGImages").iterdir()}
    assert len(set(images.values())) == len(images) == 10
    for split, count in (("train", 6), ("val", 4)):
        names = (root / f"ImageSets/Segmentation/{split}.txt").read_text().split()
        assert names == sorted(name for name in images if name.startswith(split))
        assert len(names) == count
    for path in (root / "SegmentationClass").iterdir():
        with Image.open(path) as label:
            assert label.mode == "P" and label.size == (64, 64)
            assert label.getpalette()[:18] == np.ravel(METAINFO["palette"]).tolist()


def test_registered_dataset_generates_at_first_use(tmp_path):
    settings = dict(type="ShapesDataset", recipe=asdict(RECIPE), data_root=str(tmp_path / "s"))
    lazy = DATASETS.build({**settings, "lazy_init": True})
    assert not (tmp_path / "s").exists()
    lazy.full_init()
    assert len(lazy) == 6
    pipeline = [{"type": "LoadImageFromFile"}, {"type": "LoadAnnotations"}]
    of_val = {"ann_file": "ImageSets/Segmentation/val.txt", "pipeline": pipeline}
    val = DATASETS.build({**settings, **of_val})
    assert len(val) == 4 and val.metainfo["classes"] == ("background", *FORMS)
    assert np.array_equal(val[0]["gt_seg_map"], render(3, 1_000_000, 64)[1])
