"""Compare `StripEncoderDecoder` with mmsegmentation's `EncoderDecoder`: time, memory and labels.

Only post-processing and loss are measured: the network returns stored random logits at output
stride 8. Both segmentors take turns in one process.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from mmseg.models import SegTTAModel
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from benchmarks.tables import Settings, command
from mmseg_ext import register_all_modules
from mmseg_ext.cost.timing import compare_times
from mmseg_ext.segmentors import StreamingSegTTAModel

RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
KINDS = {"stock": "EncoderDecoder", "strips": "StripEncoderDecoder"}
STRIDE = 8  # of the stored logits


@dataclass(frozen=True)
class Case:
    """A test step on one image, or a training step on a batch.

    Args:
        size, original: (H, W) of the network's input and of the image; None: `size`.
        window: size and stride of sliding windows.
        batch: images of a training step; 0 is a test step.
    """

    classes: int
    size: tuple[int, int]
    original: tuple[int, int] | None = None
    views: int = 1
    window: tuple[tuple[int, int], tuple[int, int]] | None = None
    batch: int = 0


CASES = {
    "ADE20K, 512x683, 1 view": Case(150, (512, 683)),
    "ADE20K, 512x683, 12 views": Case(150, (512, 683), views=12),
    "ADE20K, 2000x3000, 1 view": Case(150, (512, 768), (2000, 3000)),
    "Cityscapes, 1024x2048, windows of 769": Case(
        19, (1024, 2048), window=((769, 769), (513, 513))
    ),
    "ADE20K, training, 4x512x512": Case(150, (512, 512), batch=4),
    "Cityscapes, training, 2x769x769": Case(19, (769, 769), batch=2),
}


@MODELS.register_module()
class StoredLogits(BaseDecodeHead):
    """A head that returns the same random logits for every input of a size."""

    def __init__(self, **kwargs):
        super().__init__(in_channels=3, channels=3, **kwargs)
        self._logits: dict[tuple[int, ...], Tensor] = {}

    def forward(self, inputs: list[Tensor]) -> Tensor:
        (images,) = inputs
        low = tuple(-(-n // STRIDE) for n in images.shape[2:])
        shape = (len(images), self.num_classes, *low)
        if shape not in self._logits:
            generator = torch.Generator().manual_seed(sum(shape))
            logits = 3 * torch.randn(shape, generator=generator)
            self._logits[shape] = logits.to(images.device).requires_grad_(self.training)
        return self._logits[shape]


@MODELS.register_module()
class ImagesAsFeatures(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor]:
        return (images,)


def segmentor(case: Case, kind: str, device: str) -> nn.Module:
    """Build the case's segmentor as mmsegmentation's or as ours."""
    register_all_modules()
    init_default_scope("mmseg")
    test_cfg: dict = dict(mode="whole")
    if case.window is not None:
        test_cfg = dict(mode="slide", crop_size=case.window[0], stride=case.window[1])
    config = ConfigDict(
        type=KINDS[kind],
        backbone=dict(type="ImagesAsFeatures"),
        decode_head=dict(type="StoredLogits", num_classes=case.classes),
        data_preprocessor=dict(type="mmengine.BaseDataPreprocessor"),
        test_cfg=test_cfg,
    )
    return MODELS.build(config).to(device).train(case.batch > 0)


def test_step(case: Case, model: nn.Module) -> Callable[[], Tensor]:
    """Return a function that predicts the labels of the case's image."""
    images, samples = [], []
    for i in range(case.views):
        ratio = RATIOS[i // 2] if case.views > 1 else 1.0
        size = tuple(int(n * ratio + 0.5) for n in case.size)
        images.append(torch.zeros(()).expand(1, 3, *size))  # only the size is used
        meta = dict(img_path="", ori_shape=case.original or case.size, img_shape=size)
        meta |= dict(pad_shape=size, flip=i % 2 == 1, flip_direction="horizontal")
        samples.append(SegDataSample(metainfo=meta))
    merging = SegTTAModel if type(model).__name__ == KINDS["stock"] else StreamingSegTTAModel
    model_of_views = model if case.views == 1 else merging(model)

    def run() -> Tensor:
        data: dict = {"inputs": images, "data_samples": [[one.clone()] for one in samples]}
        if case.views == 1:
            data = {key: value[0] for key, value in data.items()}
        with torch.no_grad():
            (result,) = model_of_views.test_step(data)
        return result.pred_sem_seg.data.reshape(case.original or case.size)

    return run


def training_step(case: Case, model: nn.Module) -> Callable[[], Tensor]:
    """Return a function that runs forward and backward and returns the sum of the losses."""
    device = model.data_preprocessor.device
    torch.manual_seed(0)
    labels = torch.randint(0, case.classes, (case.batch, 1, *case.size)).to(device)
    images = torch.zeros(case.batch, 3, *case.size, device=device)  # only the size is used
    samples = [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]

    def run() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss, _ = model.parse_losses(model.loss(images, samples))
        loss.backward()
        return loss.detach()

    return run


def step(case: Case, kind: str, device: str = "cpu") -> Callable[[], Tensor]:
    """Return the case's step; its first call stores the logits."""
    make = training_step if case.batch else test_step
    return make(case, segmentor(case, kind, device))


def measure(case: Case, settings: Settings) -> list[str]:
    """Return median seconds and peak MiB of both, their ratios, and the difference in results."""
    steps = {kind: step(case, kind, settings.device) for kind in ("strips", "stock")}
    # Processor time does not include other processes on a shared machine.
    clock = time.process_time if settings.device == "cpu" else time.perf_counter
    ours, stock = compare_times(steps, settings.rounds, settings.device, clock).values()
    cells = [f"{stock.ms / 1e3:.2f}", f"{ours.ms / 1e3:.2f}", f"{stock.ratio:.1f}"]
    cells += [f"{stock.mib:.0f}", f"{ours.mib:.0f}", f"{ours.mib / stock.mib:.2f}"]
    ours, stock = (step() for step in steps.values())
    if case.batch:
        return [*cells, f"loss by {((ours - stock).abs() / stock).item():.0e}"]
    return [*cells, f"{(ours != stock).sum().item():,} of {stock.numel():,} labels"]


def segmentors(settings: Settings):
    """Compare all cases."""
    headings = ["", "stock, s", "strips, s", "stock / strips", "stock, MiB", "strips, MiB"]
    headings += ["strips / stock", "results that differ"]
    return headings, [[name, *measure(case, settings)] for name, case in CASES.items()]


if __name__ == "__main__":
    sys.exit(command("Class maps: time, memory and labels.", {"segmentors": segmentors}))
