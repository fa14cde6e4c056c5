"""How a network sees photos: sizes as mmcv's Resize makes them, windows, and metadata."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.transforms import Resize
from torch.nn import functional as F

from mmseg_ext.images.seen import Seen, read_metadata, resize, segment
from tests.messages import raises_message

SIDE = st.integers(1, 400)
FACTOR = st.floats(0.1, 2)


@settings(deadline=None)
@given(
    height=SIDE,
    width=SIDE,
    keep_ratio=st.booleans(),
    options=st.one_of(
        st.builds(dict, scale=st.tuples(SIDE, SIDE)),
        st.builds(dict, scale_factor=st.tuples(FACTOR, FACTOR)),
        FACTOR.map(lambda factor: dict(scale_factor=(factor, factor))),
    ),
)
def test_sizes_are_those_of_resize(height, width, keep_ratio, options):
    size = Seen(keep_ratio=keep_ratio, **options).size(height, width)
    photo = np.zeros((height, width, 3), np.uint8)
    if 0 in size:  # in which OpenCV cannot resize
        with pytest.raises(Exception, match=r"resize|empty"):
            Resize(keep_ratio=keep_ratio, **options)({"img": photo})
        return
    assert Resize(keep_ratio=keep_ratio, **options)({"img": photo})["img"].shape[:2] == size


@pytest.mark.parametrize(
    ("seen", "size"),
    [
        (Seen(), (2000, 3000)),
        (Seen(scale=(512, 512)), (341, 512)),
        (Seen(scale=(2048, 512)), (512, 768)),
        (Seen(scale=(512, 256), keep_ratio=False), (256, 512)),
        (Seen(scale_factor=(0.5, 0.5)), (1000, 1500)),
    ],
)
def test_the_size_at_which_a_photo_of_3000_x_2000_is_seen(seen, size):
    assert seen.size(height=2000, width=3000) == size


def test_the_scale_of_training_is_that_of_the_nearest_training_image():
    seen = Seen(scale=(512, 512), image_sides=(600, 1024))
    assert seen.size(2000, 3000) == (341, 512)  # a sixth
    assert seen.nearest(2000, 3000) == (683, 1024)
    assert seen.trained(2000, 3000) == (1001, 1500)  # a half, but for the rounding of 683
    assert seen.trained(400, 600) == seen.size(400, 600)
    assert "0.34 times" in seen.note(2000, 3000, "use tiles")
    assert not seen.note(800, 1000, "use tiles")


@settings(deadline=None)  # many windows, on a machine that others use, too
@given(height=SIDE, width=SIDE, side=SIDE)
def test_windows_cover_the_input_and_end_with_it(height, width, side):
    covered = np.zeros((height, width), int)
    for rows, columns in Seen().in_windows((side, side)).windows(height, width):
        assert rows.stop - rows.start == min(side, height)
        assert columns.stop - columns.start == min(side, width)
        covered[rows, columns] += 1
    assert covered.min() == 1 and Seen().windows(height, width) == [
        (slice(0, height), slice(0, width))
    ]


def test_metadata_comes_back_and_properties_of_other_programs_are_passed_over():
    seen = Seen(scale=(512, 256), window=(64, 96), stride=(56, 84), image_sides=(99, 100))
    properties = {key: json.dumps(value) for key, value in seen.metadata().items()}
    others = {"onnx.infer": "onnxruntime.quant", "author": "Lab 3", "note": "{'a': 1}", "empty": ""}
    metadata = read_metadata(properties | others)
    assert Seen.from_metadata(metadata) == seen and not others.keys() & metadata.keys()
    assert Seen.from_metadata({"scale": None, "keep_ratio": False}) == Seen(keep_ratio=False)


@pytest.mark.parametrize("size", [(7, 40), (31, 9), (12, 20)])
def test_maps_are_resized_as_by_pytorch(size):
    maps = np.random.RandomState(0).rand(3, 12, 20).astype(np.float32)
    expected = F.interpolate(torch.from_numpy(maps)[None], size, mode="bilinear")[0]
    assert np.allclose(resize(maps, *size), expected, atol=1e-6)


def test_a_photo_is_seen_at_the_scale_of_the_test_or_of_the_training():
    """The file takes the first channel as the score of class 1."""
    seen = Seen(scale=(64, 64), image_sides=(128, 128))
    metadata = seen.metadata() | dict(dynamic=True, size=[64, 64], mean=[0.0] * 3)
    sizes = []

    def run(images):
        sizes.append(images.shape[2:])
        return np.stack([np.full_like(images[:, 0], 99), images[:, 0]], 1)

    photo = np.zeros((100, 256, 3), np.uint8)
    photo[:, :128] = 255
    for trained, size in ((False, (25, 64)), (True, (50, 128))):
        labels = segment(run, metadata, photo, **(dict(trained=True) if trained else {}))
        assert sizes.pop() == size and labels.dtype == np.uint8
        assert (labels[:, :125] == 1).all() and (labels[:, 131:] == 0).all()


def test_a_file_of_a_fixed_size_gets_windows_filled_with_the_mean():
    metadata = Seen().metadata() | dict(dynamic=False, size=[32, 48], mean=[5.0, 6, 7])
    shown = []

    def run(images):
        shown.append(images[0])
        return images[:, ::-1]  # the second channel is the score of class 1

    photo = np.random.RandomState(0).randint(0, 256, (20, 100, 3), np.uint8)
    labels = segment(run, metadata, photo)
    assert np.array_equal(labels, photo[..., ::-1].argmax(2))
    assert [pixels.shape for pixels in shown] == [(3, 32, 48)] * 3
    assert np.array_equal(shown[0][:, :20], photo[:, :48].transpose(2, 0, 1))
    assert (shown[2][:, 20:] == np.array([5, 6, 7])[:, None, None]).all()
    assert np.array_equal(shown[2][:, :20], photo[:, 52:].transpose(2, 0, 1))


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_a_single_score_has_a_threshold(threshold):
    """Of its probability, as in mmsegmentation: also where windows overlap and are resized."""
    seen = Seen(scale=(40, 40), window=(32, 32), stride=(16, 16))
    metadata = seen.metadata() | dict(dynamic=True, size=[32, 32], threshold=threshold)
    photo = np.random.RandomState(0).randint(0, 256, (20, 20, 3), np.uint8)
    photo[:4] = 0  # a probability of zero, without a warning about the exponential
    labels = segment(lambda images: images[:, :1] - 120, metadata, photo)
    large = resize(photo[..., 0].astype(np.float32), 40, 40)
    scores = torch.from_numpy(resize(large, 20, 20)) - 120
    assert labels.dtype == np.uint8 and 0 < labels.mean() < 1
    assert np.array_equal(labels, (scores.sigmoid() > threshold).numpy())
    narrow = segment(lambda images: (images[:, :1] - 120) / 50, metadata, photo)
    assert np.array_equal(narrow, ((scores / 50).sigmoid() > threshold).numpy())
    with raises_message(ValueError, "threshold", todo="export"):  # a file from before
        segment(lambda images: images[:, :1], metadata | dict(threshold=None), photo)
