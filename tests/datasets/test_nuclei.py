"""The nuclei in a tiny folder of the published layout."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmseg_ext.datasets import NucleiDataset
from mmseg_ext.datasets.nuclei import LABEL_MAPS, draw_labels, split_of
from mmseg_ext.errors import LabelError
from tests.datasets.trees import NUCLEI, NUCLEI_SIZE, masks_of, write_nuclei
from tests.messages import raises_message


@pytest.fixture
def root(tmp_path) -> Path:
    write_nuclei(tmp_path / "nuclei")
    (tmp_path / "nuclei/stage1_train/.DS_Store").touch()  # of macOS
    return tmp_path / "nuclei"


PIPELINE = [dict(type="CheckedLoadImage"), dict(type="CheckedLoadAnnotations")]


def test_every_image_is_in_one_split_with_its_nuclei(root):
    seen = []
    for split in ("train", "val", "test"):
        dataset = NucleiDataset(data_root=str(root), split=split, pipeline=PIPELINE)
        for i in range(len(dataset)):
            sample = dataset[i]
            name = Path(sample["img_path"]).stem
            seen.append(name)
            assert split_of(name) == split
            assert sample["img"].shape == (*NUCLEI_SIZE, 3)
            assert (sample["img"] == int(name, 16)).all()
            masks, labels = masks_of(name), sample["gt_seg_map"]
            assert ((labels > 0) >= (sum(masks) > 0)).all() and (labels[:, 15:] < 2).all()
            assert (labels == 2).any() == (len(masks) > 1)
    assert sorted(seen) == NUCLEI  # whatever else is in the folder


def test_the_split_of_a_published_image_does_not_change():
    name = "00071198d059ba7f5914a526d124d28e6d010c92466da21d4a04cd5413362552"
    assert [split_of(name), split_of("a"), split_of("g")] == ["val", "val", "test"]


def test_a_border_is_within_three_pixels_of_two_nuclei():
    nuclei = np.zeros((11, 20), np.uint16)
    nuclei[2:9, 2:8], nuclei[2:9, 10:16] = 1, 2  # a gap of two pixels
    labels = draw_labels(nuclei)
    ys, xs = np.mgrid[:11, :20]

    def distance(number):
        y, x = np.nonzero(nuclei == number)
        return np.hypot(ys[..., None] - y, xs[..., None] - x).min(-1)

    both = np.maximum(distance(1), distance(2))
    assert (labels[both <= 2.9] == 2).all() and (labels[both > 3.7] != 2).all()
    assert (labels[5] == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0, 0]).all()


def test_label_maps_are_drawn_once(root):
    NucleiDataset(data_root=str(root), split="val")
    paths = sorted((root / LABEL_MAPS).iterdir())
    assert [path.stem for path in paths] == [n for n in NUCLEI if split_of(n) == "val"]
    Image.fromarray(np.zeros(NUCLEI_SIZE, np.uint8)).save(paths[0])
    dataset = NucleiDataset(data_root=str(root), split="val", pipeline=PIPELINE)
    assert not dataset[0]["gt_seg_map"].any()


def test_an_unknown_split_and_damaged_masks_are_named(root):
    with pytest.raises(ValueError, match="split='dev'"):
        NucleiDataset(data_root=str(root), split="dev")
    name = next(n for n in NUCLEI if split_of(n) == "train")
    masks = root / "stage1_train" / name / "masks"
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(masks / "9.png")
    with raises_message(LabelError, where=f"{masks}: ", todo=True):
        NucleiDataset(data_root=str(root))
