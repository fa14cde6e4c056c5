"""A small segmentor, views of random images, and the memory that a call takes."""

import copy
import itertools

import numpy as np
import torch
from mmcv.transforms import Compose
from mmengine.config import ConfigDict
from mmengine.dataset import pseudo_collate
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch.profiler import ProfilerActivity, profile

from tests.models import PREPROCESSOR, randomise

ONE_CHANNEL = dict(channels=2, out_channels=1, threshold=0.6)


def segmentor(
    channels: int = 5,
    slide: bool = False,
    align_corners: bool = False,
    kind: str = "EncoderDecoder",
    auxiliary: dict | list | None = None,
    **head,
):
    """A small segmentor with random statistics: an FCN of output stride 8, or another `head`.

    The backbone's four feature maps have 8, 16, 32 and 64 channels.
    """
    init_default_scope("mmseg")
    norm = dict(type="BN")
    test_cfg = dict(mode="slide" if slide else "whole", crop_size=(32, 32), stride=(20, 20))
    if "type" not in head:
        head |= dict(type="FCNHead", num_convs=1, concat_input=False)
    backbone = dict(type="ResNetV1c", depth=18, base_channels=8, stem_channels=8, norm_cfg=norm)
    backbone |= dict(strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4))
    decode_head = dict(in_channels=64, in_index=3, channels=16, norm_cfg=norm)
    decode_head |= dict(num_classes=channels, align_corners=align_corners) | head
    parts = dict(backbone=backbone, decode_head=decode_head, auxiliary_head=auxiliary)
    parts |= dict(data_preprocessor=PREPROCESSOR, test_cfg=test_cfg)
    config = ConfigDict(type=kind, **parts)
    model = MODELS.build(config)
    with torch.no_grad():
        model.decode_head.conv_seg.weight.mul_(300)  # logits that differ, not all near zero
    return randomise(model).eval()


def views(image: np.ndarray, ratios, directions=("horizontal",), field="a") -> dict:
    """What TestTimeAug makes of one image: every ratio, unflipped and flipped each way."""
    flips = [dict(type="RandomFlip", prob=0.0)]
    flips += [dict(type="RandomFlip", prob=1.0, direction=d) for d in directions]
    scales = [dict(type="Resize", scale_factor=r, keep_ratio=True) for r in ratios]
    keys = ("img_path", "ori_shape", "img_shape", "pad_shape", "flip", "flip_direction")
    steps = [scales, flips, [dict(type="PackSegInputs", meta_keys=keys)]]
    transform = Compose([dict(type="TestTimeAug", transforms=steps)])
    return transform({"img": image, "img_path": field, "ori_shape": image.shape[:2]})


def labelled(size=(45, 61), ignored: float = 0.2, classes: int = 5) -> list[SegDataSample]:
    """Two label maps; the first rows are ignored."""
    labels = torch.randint(0, classes, (2, 1, *size))
    labels[:, :, : round(ignored * size[0])] = 255
    return [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]


def random_image(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)


def pair(keep_logits: bool = False, **kwargs):
    """The same `segmentor` as mmseg's `EncoderDecoder` and as ours."""
    stock = segmentor(**kwargs)
    ours = segmentor(kind="StripEncoderDecoder", **kwargs)
    ours.load_state_dict(stock.state_dict())
    ours.test_cfg.keep_logits = keep_logits
    return stock, ours


def batch_of_two(ratios=(0.5, 1.0, 1.75), directions=("horizontal", "vertical")) -> dict:
    images = [random_image(40, 56, seed) for seed in (0, 1)]
    return pseudo_collate([views(im, ratios, directions, f"{i}") for i, im in enumerate(images)])


def each_view(model, data) -> list[tuple]:
    """Per image, the samples that the segmentor predicts for every view on its own."""
    views = [dict(zip(data, view, strict=True)) for view in zip(*data.values(), strict=True)]
    return list(zip(*(model.test_step(copy.deepcopy(view)) for view in views), strict=True))


def allocated_at_peak(function) -> int:
    """Bytes of tensors on the CPU that `function` holds at its worst, above those of its start."""
    activities = [ProfilerActivity.CPU]
    with torch.no_grad(), profile(activities=activities, profile_memory=True) as profiler:
        function()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    return max(itertools.accumulate(e.nbytes() for e in changes))
