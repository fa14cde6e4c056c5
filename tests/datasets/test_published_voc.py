"""The VOC config's pipelines against the published steps: normalize, scale, pad, crop, flip."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmcv.transforms import Compose
from mmseg.registry import MODELS, TRANSFORMS
from PIL import Image
from torch import Tensor

from tests.configs import CONFIGS, load

CONFIG = load(CONFIGS / "ea_r101_voc_45k.py")
MEAN = torch.tensor([0.485, 0.456, 0.406])
STD = torch.tensor([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One image, 300 high and 411 wide, with its label map."""
    folder = tmp_path_factory.mktemp("voc")
    random = np.random.RandomState(0)
    Image.fromarray(random.randint(0, 256, (300, 411, 3), dtype=np.uint8)).save(folder / "a.png")
    labels = random.choice([0, 1, 7, 20, 255], (300, 411)).astype(np.uint8)
    Image.fromarray(labels).save(folder / "a_label.png")
    return {
        "img_path": str(folder / "a.png"),
        "seg_map_path": str(folder / "a_label.png"),
        "label_map": None,
        "num_classes": 21,
        "reduce_zero_label": False,
    }


def normalize(pixels: np.ndarray) -> Tensor:
    """Return an RGB image (H, W, 3) as the published code normalizes it, (1, 3, H, W)."""
    return ((torch.FloatTensor(pixels) / 255 - MEAN) / STD).permute(2, 0, 1)[None]


def preprocess(packed: dict, training: bool) -> tuple[Tensor, Tensor]:
    preprocessor = MODELS.build(CONFIG.model.data_preprocessor)
    batch = {"inputs": [packed["inputs"]], "data_samples": [packed["data_samples"]]}
    batch = preprocessor(batch, training)
    return batch["inputs"], batch["data_samples"][0]


def test_scale_set():
    """The ratios are SCALES in settings.py."""
    (scale,) = (t for t in CONFIG.train_pipeline if t["type"] == "RandomRatioScale")
    assert scale["ratios"] == [i / 10 for i in range(5, 21)]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("ratio", [0.5, 0.7, 1.3, 1.7])
def test_training_sample(files, ratio, flip):
    """The values equal the published steps, for sizes below and above the crop."""
    pipeline = [t.copy() for t in CONFIG.train_pipeline]
    for transform in pipeline:
        if transform["type"] == "RandomRatioScale":
            transform["ratios"] = [ratio]
        if transform["type"] == "RandomFlip":
            transform["prob"] = float(flip)
    compose = Compose([TRANSFORMS.build(t) for t in pipeline])
    np.random.seed(5)
    image, sample = preprocess(compose({**files, "seg_fields": []}), training=True)

    pixels, label = (np.array(Image.open(files[k])) for k in list(files)[:2])
    expected, label = normalize(pixels), torch.FloatTensor(label)[None, None]
    expected = F.interpolate(expected, scale_factor=ratio, mode="bilinear", align_corners=True)
    label = F.interpolate(label, scale_factor=ratio, mode="nearest")
    height, width = expected.shape[-2:]
    padding = (0, max(513 - width, 0), 0, max(513 - height, 0))
    expected, label = F.pad(expected, padding), F.pad(label, padding, value=255)
    np.random.seed(5)
    np.random.choice([ratio])
    top = np.random.randint(0, expected.shape[2] - 513 + 1)
    left = np.random.randint(0, expected.shape[3] - 513 + 1)
    expected = expected[:, :, top : top + 513, left : left + 513]
    label = label[:, :, top : top + 513, left : left + 513]
    if flip:
        expected, label = expected.flip(3), label.flip(3)

    torch.testing.assert_close(image, expected, rtol=0, atol=2e-5)
    assert torch.equal(sample.gt_sem_seg.data[None], label.long())


@pytest.mark.parametrize("size", [(300, 411), (297, 409), (296, 408)])
def test_evaluation_sample(files, size):
    """The image is padded with zeros to 1 modulo 8 after normalization; labels are unchanged."""
    image, label = (np.array(Image.open(files[k]))[: size[0], : size[1]] for k in list(files)[:2])
    pad, *_ = (TRANSFORMS.build(t) for t in CONFIG.test_pipeline if t["type"] == "PadToRemainder")
    pack = TRANSFORMS.build(CONFIG.test_pipeline[-1])
    results = pad({"img": np.ascontiguousarray(image[..., ::-1]), "ori_shape": size})
    results.update(gt_seg_map=label, seg_fields=["gt_seg_map"])
    inputs, sample = preprocess(pack(results), training=False)

    bottom, right = ((8 + 1 - n % 8) % 8 for n in size)
    expected = F.pad(normalize(image), (0, right, 0, bottom))
    torch.testing.assert_close(inputs, expected, rtol=0, atol=2e-6)
    assert not inputs[..., size[0] :, :].any() and not inputs[..., size[1] :].any()
    assert sample.pad_shape == sample.img_shape == tuple(expected.shape[-2:])
    assert sample.img_padding_size == (0, right, 0, bottom)
    assert torch.equal(sample.gt_sem_seg.data[0], torch.from_numpy(label).long())


def test_loss_is_the_mean_over_all_pixels():
    """NLLLoss(reduction='none', ignore_index=255), then the mean, ignored pixels included."""
    logits = torch.randn(2, 21, 8, 9)
    label = torch.randint(0, 21, (2, 8, 9))
    label[:, :3] = 255
    published = F.nll_loss(logits.log_softmax(1), label, ignore_index=255, reduction="none")
    loss = MODELS.build(CONFIG.model.decode_head.loss_decode)
    torch.testing.assert_close(loss(logits, label, ignore_index=255), published.mean())
    assert CONFIG.model.decode_head.get("sampler") is None
    assert CONFIG.model.get("auxiliary_head") is None
