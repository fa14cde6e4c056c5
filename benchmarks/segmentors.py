"""Compare the time of complete segmentors: our layers with their plain forms, EANet with others.

    OMP_NUM_THREADS=1 python -m benchmarks.segmentors --rounds 3

Inference predicts the labels of one image of 512x512; training is forward, all losses and backward.
"""

from collections.abc import Callable
from typing import Any

import torch
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import nn

from benchmarks.reference.lambda_layer import PlainLambdaLayer, conv3d
from benchmarks.reference.manhattan_attention import PlainRMT
from benchmarks.tables import Part, command, in_published_order
from mmseg_ext import get_model
from mmseg_ext.comparison.timing import compare_times
from mmseg_ext.layers import LambdaLayer

SIZE = (512, 512)
CLASSES = 150  # of ADE20K


def with_plain_lambdas(model: nn.Module) -> nn.Module:
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, LambdaLayer):
                setattr(module, name, PlainLambdaLayer(layer, conv3d))
    return model


def with_plain_rmt(model: Any) -> nn.Module:
    model.backbone = PlainRMT(model.backbone)
    return model


def batch(images: int) -> dict:
    """Return random images with random labels."""
    meta = dict(img_path="", ori_shape=SIZE, img_shape=SIZE, pad_shape=SIZE)
    samples = [SegDataSample(metainfo=meta) for _ in range(images)]
    for sample in samples:
        sample.gt_sem_seg = PixelData(data=torch.randint(CLASSES, (1, *SIZE)))
    pixels = [torch.randint(256, (3, *SIZE), dtype=torch.uint8) for _ in samples]
    return {"inputs": pixels, "data_samples": samples}


def inference(model: Any, _images: int) -> object:
    with torch.no_grad():
        return model.eval().test_step(batch(1))


def training(model: Any, images: int) -> None:
    model.train().zero_grad(set_to_none=True)
    data = model.data_preprocessor(batch(images), True)
    model.parse_losses(model(**data, mode="loss"))[0].backward()


def segmentors(build: Callable[[], dict[str, nn.Module]], images: int = 1) -> Part:
    """Return a part that compares segmentors with the first one."""

    def part(rounds: int):
        models, rows = build(), []
        for step in (inference, training):
            steps = {k: lambda m=m: step(m, images) for k, m in models.items()}  # noqa: B023
            found = compare_times(steps, rounds)
            cells = [(k, f"{r.ms / 1e3:.2f}", f"{r.ratio:.2f}") for k, r in found.items()]
            rows += [[step.__name__, *row] for row in cells]
        return ["step", "segmentor", "s", "time over the first"], rows

    return part


def twins(name: str, plain: Callable[[nn.Module], nn.Module], images: int = 1) -> Part:
    return segmentors(lambda: {name: get_model(name), "plain": plain(get_model(name))}, images)


EA = "ea_r101_ade20k_160k"
PARTS = {
    "external_attention": twins(EA, in_published_order),
    "manhattan": twins("fpn_rmt_tiny_ade20k_80k", with_plain_rmt),
    "lambda": twins("ea_lambda_r50_ade20k_160k", with_plain_lambdas),
    "re_attention": twins("upernet_deepvit_s_ade20k_160k", in_published_order, images=2),
    "strips": segmentors(
        lambda: {EA: get_model(EA), "EncoderDecoder": get_model(EA, type="EncoderDecoder")}
    ),
    "heads": segmentors(
        lambda: {name: get_model(f"{name}_r101_ade20k_160k") for name in ("ea", "fcn", "danet")}
    ),
}

if __name__ == "__main__":
    command("Complete segmentors: time of inference and of a training step.", PARTS)
