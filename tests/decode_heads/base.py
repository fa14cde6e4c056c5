"""One tester that every decode head passes: subclass it and name the head (see test_*.py)."""

import torch
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from tests.models import ModelTester, randomise, tensors


class HeadTester(ModelTester):
    """Subclasses set `config` (a small build of the head, with its `type`).

    `in_channels` is the width of the one feature map the head reads; `num_outputs` the number of
    logit maps that `forward` returns in training. See also `ModelTester`.
    """

    in_channels: int = 32
    num_classes: int = 5
    size = (16, 24)
    num_outputs: int = 1

    def build(self, **changes):
        return MODELS.build(
            {
                "in_channels": self.in_channels,
                "num_classes": self.num_classes,
                "norm_cfg": {"type": "BN"},
                **self.config,
                **changes,
            }
        )

    def inputs(self, batch: int = 2, extra: tuple[int, int] = (0, 0)) -> list[torch.Tensor]:
        height, width = self.size
        return [torch.randn(batch, self.in_channels, height + extra[0], width + extra[1])]

    def samples(self, batch: int = 2, stride: int = 4) -> list[SegDataSample]:
        height, width = (s * stride for s in self.size)
        labels = torch.randint(0, self.num_classes, (batch, 1, height, width))
        labels[:, :, :3] = 255
        return [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]

    def test_loss_and_gradients(self):
        head = randomise(self.build()).train()
        outputs = tensors(head(self.inputs()))
        assert [t.shape for t in outputs] == self.num_outputs * [(2, self.num_classes, *self.size)]
        losses = head.loss(self.inputs(), self.samples(), train_cfg=None)
        total = sum(value for name, value in losses.items() if "loss" in name)
        assert torch.isfinite(total) and total > 0
        total.backward()
        self.check_gradients(head)

    def test_odd_size_and_batch_of_one(self):
        head = self.build().eval()
        with torch.no_grad():
            output = head.predict(
                self.inputs(1, extra=(3, 7)), [{"img_shape": (77, 125)}], test_cfg=None
            )
        assert output.shape == (1, self.num_classes, 77, 125)
        assert torch.isfinite(output).all()
