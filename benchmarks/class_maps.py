"""Compare `StripEncoderDecoder` with mmsegmentation's `EncoderDecoder`: time, memory and labels.

Only post-processing and loss are measured: the network returns stored random logits at output
stride 8. Both segmentors take turns in one process.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from mmengine.config import ConfigDict
from mmengine.structures import PixelData
from mmseg.models import EncoderDecoder, SegTTAModel
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from benchmarks.tables import command
from mmseg_ext import register_all_modules
from mmseg_ext.comparison.timing import compare_times
from mmseg_ext.segmentors import StreamingSegTTAModel, StripEncoderDecoder

RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
STRIDE = 8  # of the stored logits


@dataclass(frozen=True)
class Case:
    """A test step on one image, or a training step on a batch.

    Args:
        size, original: (H, W) of the network's input and of the image; None: `size`.
        views: more than one is test-time augmentation.
        window: side and stride of sliding windows; None: the entire image at once.
        batch: images of a training step; 0 is a test step.
    """

    classes: int
    size: tuple[int, int]
    original: tuple[int, int] | None = None
    views: int = 1
    window: tuple[int, int] | None = None
    batch: int = 0


CASES = {
    "ADE20K, 512x683, 1 view": Case(150, (512, 683)),
    "ADE20K, 512x683, 12 views": Case(150, (512, 683), views=12),
    "ADE20K, 2000x3000, 1 view": Case(150, (512, 768), (2000, 3000)),
    "Cityscapes, 1024x2048, windows of 769": Case(19, (1024, 2048), window=(769, 513)),
    "ADE20K, training, 4x512x512": Case(150, (512, 512), batch=4),
    "Cityscapes, training, 2x769x769": Case(19, (769, 769), batch=2),
}


class StoredLogits(BaseDecodeHead):
    """A head that returns the same random logits for every input of a size."""

    def __init__(self, **kwargs):
        super().__init__(in_channels=3, channels=3, **kwargs)
        self.stored: dict[tuple[int, ...], Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        low = tuple(-(-n // STRIDE) for n in images.shape[2:])
        shape = (len(images), self.num_classes, *low)
        if shape not in self.stored:
            generator = torch.Generator().manual_seed(sum(shape))
            logits = 3 * torch.randn(shape, generator=generator)
            self.stored[shape] = logits.to(images.device).requires_grad_(self.training)
        return self.stored[shape]


Step = Callable[[], list[Tensor]]
"""A function that returns the labels, or in training the loss and the gradient of the logits."""


def step(case: Case, kind: type[EncoderDecoder], device: str = "cpu") -> Step:
    """Return a step of one of the two segmentors; its first call stores the logits."""
    register_all_modules()
    test_cfg: dict = dict(mode="whole")
    if case.window is not None:
        side, stride = case.window
        test_cfg = dict(mode="slide", crop_size=(side, side), stride=(stride, stride))
    config = ConfigDict(
        type=kind,
        backbone=dict(type=nn.Identity),
        decode_head=dict(type=StoredLogits, num_classes=case.classes),
        data_preprocessor=dict(type="mmengine.BaseDataPreprocessor"),
        test_cfg=test_cfg,
    )
    model = MODELS.build(config).to(device).train(case.batch > 0)
    return training_step(case, model) if case.batch else test_step(case, model)


def test_step(case: Case, model: nn.Module) -> Step:
    """Return a function that predicts the labels of the case's image."""
    images, samples = [], []
    for i in range(case.views):
        ratio = RATIOS[i // 2] if case.views > 1 else 1.0
        size = tuple(int(n * ratio + 0.5) for n in case.size)
        images.append(torch.zeros(()).expand(1, 3, *size))  # only the size is used
        meta = dict(img_path="", ori_shape=case.original or case.size, img_shape=size)
        meta |= dict(pad_shape=size, flip=i % 2 == 1, flip_direction="horizontal")
        samples.append(SegDataSample(metainfo=meta))
    merging = SegTTAModel if type(model) is EncoderDecoder else StreamingSegTTAModel
    model_of_views = model if case.views == 1 else merging(model)

    def run() -> list[Tensor]:
        data: dict = {"inputs": images, "data_samples": [[one.clone()] for one in samples]}
        if case.views == 1:
            data = {key: value[0] for key, value in data.items()}
        with torch.no_grad():
            (result,) = model_of_views.test_step(data)
        return [result.pred_sem_seg.data.reshape(case.original or case.size)]

    return run


def training_step(case: Case, model: nn.Module) -> Step:
    """Return a function that runs forward and backward."""
    device = model.data_preprocessor.device
    torch.manual_seed(0)
    labels = torch.randint(0, case.classes, (case.batch, 1, *case.size)).to(device)
    images = torch.zeros(case.batch, 3, *case.size, device=device)  # only the size is used
    samples = [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]

    def run() -> list[Tensor]:
        for logits in model.decode_head.stored.values():
            logits.grad = None
        loss, _ = model.parse_losses(model.loss(images, samples))
        loss.backward()
        (logits,) = model.decode_head.stored.values()
        return [loss.detach(), logits.grad]

    return run


def measure(case: Case, rounds: int) -> list[str]:
    """Return median seconds and peak MiB of both, their ratios, and the difference in results."""
    kinds = (StripEncoderDecoder, EncoderDecoder)
    steps = {kind.__name__: step(case, kind) for kind in kinds}
    results = compare_times(steps, rounds)
    ours, stock = results.values()
    cells = [f"{stock.ms / 1e3:.2f}", f"{ours.ms / 1e3:.2f}", f"{stock.ratio:.1f}"]
    cells += [f"{stock.mib:.0f}", f"{ours.mib:.0f}", f"{ours.mib / stock.mib:.2f}"]
    ours, stock = (run()[0] for run in steps.values())
    if case.batch:
        return [*cells, f"loss by {((ours - stock).abs() / stock).item():.0e}"]
    return [*cells, f"{(ours != stock).sum().item():,} of {stock.numel():,} labels"]


def segmentors(rounds: int):
    """Compare all cases."""
    headings = ["", "stock, s", "strips, s", "stock / strips", "stock, MiB", "strips, MiB"]
    headings += ["strips / stock", "results that differ"]
    return headings, [[name, *measure(case, rounds)] for name, case in CASES.items()]


if __name__ == "__main__":
    command("Class maps: time, memory and labels.", {"segmentors": segmentors})
