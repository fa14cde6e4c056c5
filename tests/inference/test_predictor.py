"""`Predictor` against mmsegmentation's `inference_model`."""

import cv2
import numpy as np
import pytest
from mmseg.apis import inference_model

from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import UnreadableFileError
from mmseg_ext.inference import Predictor
from tests.configs import CONFIGS

CONFIG = str(CONFIGS / "ea_r18_shapes.py")


@pytest.fixture
def images(tmp_path) -> list[str]:
    """Two images of one shape, one of another, and a broken file between them."""
    random = np.random.RandomState(0)
    for name, shape in (("a", (48, 64, 3)), ("c", (40, 40, 3)), ("d", (48, 64, 3))):
        cv2.imwrite(str(tmp_path / f"{name}.png"), random.randint(0, 256, shape).astype(np.uint8))
    (tmp_path / "b.png").write_bytes(b"no image")
    return sorted(map(str, tmp_path.glob("*.png")))


def test_batches_of_equal_shape_give_the_labels_of_single_images(images):
    predictor = Predictor(load_settings(CONFIG), None, batch_size=2)
    found = dict(predictor.predict((path, path) for path in images))
    assert sorted(found) == images
    broken = found.pop(images[1])
    assert isinstance(broken, UnreadableFileError) and "b.png" in str(broken)
    for path, labels in found.items():
        image = cv2.imread(path)
        expected = inference_model(predictor.model, image).pred_sem_seg.data[0].numpy()
        assert labels.dtype == np.uint8 and labels.shape == image.shape[:2]
        assert (labels == expected).mean() > 0.999  # sums of a batch round otherwise
        ((_, of_array),) = predictor.predict([("", image)])
        assert (of_array == expected).all()


def test_test_time_augmentation_is_the_configs(images):
    predictor = Predictor(load_settings(CONFIG), None, tta=True)
    assert type(predictor.model).__name__ == "StreamingSegTTAModel"
    ((_, labels),) = predictor.predict([("a", images[0])])
    assert labels.shape == (48, 64) and labels.max() < len(predictor.classes)
    with pytest.raises(ValueError, match="batch_size"):
        Predictor(load_settings(CONFIG), None, batch_size=0)
