"""`Predictor` against mmsegmentation's `inference_model`."""

import cv2
import numpy as np
import pytest
import torch
from mmseg.apis import inference_model, init_model
from PIL import Image

import mmseg_ext
from mmseg_ext.errors import UnreadableFileError
from tests.configs import CONFIGS
from tests.models import randomise

CONFIG = str(CONFIGS / "ea_r18_shapes.py")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = randomise(mmseg_ext.get_model(CONFIG))
    with torch.no_grad():
        model.decode_head.conv_seg.weight.mul_(100)  # scores that differ between pixels
    return model.eval()


@pytest.fixture
def images(tmp_path) -> list[str]:
    paths = [str(tmp_path / name) for name in ("a.png", "b.png")]
    for path, size in zip(paths, ((48, 64), (40, 40)), strict=True):
        cv2.imwrite(path, noise(*size, 3))
    return paths


def noise(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, shape, dtype=np.uint8)


def test_paths_pictures_and_arrays_give_the_labels_of_mmsegmentation(model, images, tmp_path):
    predictor = mmseg_ext.Predictor(model)
    for path in images:
        bgr = cv2.imread(path)
        expected = inference_model(model, bgr).pred_sem_seg.data[0].numpy()
        assert len(np.unique(expected)) > 1
        single = predictor(path)
        several = predictor([tmp_path / path, Image.open(path), bgr[..., ::-1]])
        for result in (single, *several):
            assert result.labels.dtype == np.uint8 and (result.labels == expected).all()
            assert (result.image == bgr[..., ::-1]).all()
    assert predictor([]) == []


def test_photos_are_rotated_by_their_exif_orientation(model, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    pixels = noise(40, 56, 3)
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=exif)
    predictor = mmseg_ext.Predictor(model)
    for photo in (tmp_path / "photo.png", Image.open(tmp_path / "photo.png")):
        result = predictor(photo)
        assert (result.image == np.rot90(pixels, -1)).all() and result.labels.shape == (56, 40)


def test_the_overlay_blends_the_colors_of_the_labels(model, images):
    result = mmseg_ext.Predictor(model)(images[0])
    assert result.classes == tuple(model.dataset_meta["classes"])
    colors = np.array(model.dataset_meta["palette"])[result.labels]
    for given, opacity in (((0,), 0), ((0.25,), 0.25), ((), 0.5), ((1,), 1)):
        blend = np.asarray(result.overlay(*given, legend=False)).astype(int)
        assert np.abs(blend - (result.image * (1 - opacity) + colors * opacity)).max() <= 1
    assert result.overlay().height > result.labels.shape[0]  # the legend


@pytest.mark.parametrize(("color", "bands"), [("grayscale", 1), ("unchanged", 4)])
def test_other_loaders_keep_their_options(model, tmp_path, color, bands):
    """Gray and multispectral images load as such; the overlay shows gray or three bands."""
    other = init_model(CONFIG, None, device="cpu")
    other.dataset_meta = model.dataset_meta
    other.cfg.test_dataloader.dataset.pipeline[0].update(color_type=color, to_float32=True)
    seen = []
    other.test_step = lambda data: (
        seen.extend(data["inputs"])
        or model.test_step({**data, "inputs": [x[:1].expand(3, -1, -1) for x in data["inputs"]]})
    )
    pixels = noise(40, 48, 4)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    result = mmseg_ext.Predictor(other)(tmp_path / "a.png")
    gray = cv2.imread(str(tmp_path / "a.png"), cv2.IMREAD_GRAYSCALE)[..., None]
    assert seen[0].shape[0] == bands
    assert (result.image == (gray if color == "grayscale" else pixels[..., :3])).all()


def test_labels_have_the_smallest_type(model, images):
    predictor = mmseg_ext.Predictor(model)
    for count, dtype in ((256, np.uint8), (257, np.uint16)):
        predictor.classes = ("a",) * count
        assert predictor(images[0]).labels.dtype == dtype


def test_test_time_augmentation_is_the_configs(model, images):
    for kind in ("SegTTAModel", "StreamingSegTTAModel"):
        model.cfg.tta_model.type = kind
        predictor, single = (mmseg_ext.Predictor(model, tta) for tta in (True, False))
        assert type(predictor.model).__name__ == kind
    labels = predictor(images[0]).labels
    assert labels.shape == (48, 64) and (labels != single(images[0]).labels).any()


def test_bad_images_are_errors(model, tmp_path):
    (tmp_path / "b.png").write_bytes(b"no image")
    predictor = mmseg_ext.Predictor(model)
    with pytest.raises(UnreadableFileError, match=r"b\.png"):
        predictor(tmp_path / "b.png")
    for array in (np.zeros((8, 8, 3), np.float32), np.zeros((3, 8, 8), np.uint8)):
        with pytest.raises(ValueError, match="image"):
            predictor(array)
