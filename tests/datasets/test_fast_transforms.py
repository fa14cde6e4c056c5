"""The faster forms of mmsegmentation's transforms: the same draws and the same pixels."""

import numpy as np
import pytest
from mmseg.datasets.transforms import PhotoMetricDistortion, RandomCrop
from mmseg.registry import DATASETS, TRANSFORMS

from mmseg_ext.datasets.fast_transforms import (
    CountingRandomCrop,
    LabeledRandomCrop,
    TablePhotoMetricDistortion,
)
from mmseg_ext.durable.randomness import seeded
from tests.datasets.trees import make_tree

SAMPLES = 1000


def assert_equal_results(stock, ours, sample: dict, seed: int) -> dict:
    """Compare results and the next draw of two transforms, and return the result."""
    results = []
    for transform in (stock, ours):
        copy = {key: np.copy(v) if isinstance(v, np.ndarray) else v for key, v in sample.items()}
        with seeded(seed):
            results.append({**transform.transform(copy), "next draw": np.random.random()})
    np.testing.assert_equal(*results)
    for key, value in results[0].items():
        assert getattr(value, "dtype", None) == getattr(results[1][key], "dtype", None)
    return results[0]


def random_labels(random: np.random.RandomState, size: tuple[int, int], kind: int) -> np.ndarray:
    """Return labels of one class, of two, of many, only ignored ones, or of another type."""
    if kind == 0:
        return np.full(size, random.choice([0, 7, 255]), np.uint8)
    if kind == 1:
        return (random.random(size) < random.choice([0.1, 0.25, 0.5])).astype(np.uint8) * 254
    if kind == 2:
        return random.choice([0, 1, 149, 255], size, p=[0.74, 0.06, 0.1, 0.1]).astype(np.uint8)
    if kind == 3:
        return random.randint(-3, 300, size).astype(random.choice([np.int64, np.int16]))
    return random.randint(0, 256, size, dtype=np.uint8)


def test_crops_are_those_of_mmsegmentation():
    """With sizes below, at and above the crop, and limits that no crop or each one meets."""
    random, redrawn = np.random.RandomState(0), 0
    for seed in range(SAMPLES):
        size = tuple(random.randint(1, 40, 2))
        label = random_labels(random, size, seed % 5)
        sample = dict(img=random.random((*size, 3)), gt_seg_map=label, seg_fields=["gt_seg_map"])
        settings = dict(
            crop_size=int(random.randint(1, 50)),
            cat_max_ratio=random.choice([0.3, 0.75, 0.75, 1.0]),
            ignore_index=int(random.choice([255, 0, -1, 300])),
        )
        stock, ours = RandomCrop(**settings), CountingRandomCrop(**settings)
        found = assert_equal_results(stock, ours, sample, seed)
        with seeded(seed):
            np.random.randint(0, 9, 2)
            redrawn += found["next draw"] != np.random.random()
    assert 100 < redrawn < SAMPLES


@pytest.mark.parametrize("kind", ["uint8", "a view", "float32"])
def test_distortions_are_those_of_mmsegmentation(kind):
    random, changed = np.random.RandomState(0), 0
    for seed in range(SAMPLES if kind == "uint8" else 50):
        image = random.randint(0, 256, (*random.randint(1, 30, 2), 3), dtype=np.uint8)
        if kind == "a view":
            image = image[:, ::-1]
        if kind == "float32":  # from 0 to 1, as OpenCV takes floats to HSV
            image = image.astype(np.float32) / 255
        settings = dict(brightness_delta=int(random.choice([10, 32, 300])), hue_delta=18)
        stock, ours = PhotoMetricDistortion(**settings), TablePhotoMetricDistortion(**settings)
        found = assert_equal_results(stock, ours, {"img": image}, seed)
        changed += (found["img"] != image).any()
    assert changed > 40


def test_a_view_of_one_channel_is_distorted_in_its_shape():
    image = np.random.RandomState(0).randint(0, 256, (5, 6, 1), dtype=np.uint8)
    expected = PhotoMetricDistortion().convert(image, alpha=1.3, beta=-7.5)
    np.testing.assert_array_equal(TablePhotoMetricDistortion().convert(image, 1.3, -7.5), expected)


@TRANSFORMS.register_module()
class OwnRandomCrop(RandomCrop):
    """A transform of a user, which stays."""


def test_pipelines_of_the_datasets_get_the_fast_forms(tmp_path):
    """Where they name mmsegmentation's, and with equal samples."""
    settings = make_tree("ade20k", tmp_path).config().train_dataloader.dataset
    settings.pipeline.insert(4, dict(type="OwnRandomCrop", crop_size=(8, 8)))
    dataset = DATASETS.build(settings)
    kinds = [type(transform) for transform in dataset.pipeline.transforms]
    assert CountingRandomCrop in kinds and TablePhotoMetricDistortion in kinds
    assert OwnRandomCrop in kinds and RandomCrop not in kinds
    transforms, samples = dataset.pipeline.transforms, []
    for _ in range(2):
        with seeded(3):
            samples.append(dataset[0])
        crop = kinds.index(CountingRandomCrop)
        transforms[crop] = RandomCrop(crop_size=(512, 512), cat_max_ratio=0.75)
        transforms[kinds.index(TablePhotoMetricDistortion)] = PhotoMetricDistortion()
    assert (samples[0]["inputs"] == samples[1]["inputs"]).all()
    labels = [sample["data_samples"].gt_sem_seg.data for sample in samples]
    assert (labels[0] == labels[1]).all()


def drawn_crops(crop, label: np.ndarray, count: int = 60) -> list[tuple[int, int, int, int]]:
    np.random.seed(0)
    results = {"img": np.zeros((*label.shape, 3), np.uint8), "gt_seg_map": label}
    return [crop.crop_bbox(dict(results)) for _ in range(count)]


@pytest.mark.parametrize("size", [(16, 16), (100, 16), (16, 200)])
def test_crops_of_sparse_labels_have_a_labeled_pixel(size):
    """At each border of the image; a label map without labels, and a dense one, as `RandomCrop`."""
    crop = LabeledRandomCrop(crop_size=size, cat_max_ratio=0.75)
    usual = CountingRandomCrop(crop_size=size, cat_max_ratio=0.75)
    label = np.full((64, 96), 255, np.uint8)
    assert drawn_crops(crop, label) == drawn_crops(usual, label)
    for place in ((0, 0), (63, 95), (30, 50)):
        one = label.copy()
        one[place] = 3
        boxes = drawn_crops(crop, one)
        for top, bottom, left, right in boxes:
            assert (one[top:bottom, left:right] == 3).any() and top >= 0 and left >= 0
            assert (bottom <= 64 or bottom == size[0]) and (right <= 96 or right == size[1])
        if place == (30, 50) and size == (16, 16):
            assert len({*boxes}) > 20
    dense = np.random.RandomState(0).randint(0, 3, (64, 96)).astype(np.uint8)
    assert drawn_crops(crop, dense) == drawn_crops(usual, dense)
