"""One tester that every decode head passes: subclass it and name the head (see test_*.py)."""

import torch
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from tests.models import (
    assert_autocast_close,
    assert_compiles_once,
    assert_defaults_stay,
    assert_every_parameter_gets_gradient,
    assert_exports,
    assert_half_precision_works,
    assert_right_gradients_for_one_image,
    assert_round_trips,
    randomise,
    tensors,
)


class HeadTester:
    """Subclasses set `config` (a small build of the head, with its `type`).

    `in_channels` is the width of the one feature map the head reads; `num_outputs` the number of
    logit maps that `forward` returns in training. `zero_gradient` holds patterns of parameters
    whose gradient is zero by theory.
    """

    config: dict
    in_channels: int = 32
    num_classes: int = 5
    size: tuple[int, int] = (16, 24)
    num_outputs: int = 1
    zero_gradient: tuple[str, ...] = ()

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

    def features(self, batch: int = 2, extra: tuple[int, int] = (0, 0)) -> list[torch.Tensor]:
        height, width = self.size
        return [torch.randn(batch, self.in_channels, height + extra[0], width + extra[1])]

    def samples(self, batch: int = 2, stride: int = 4) -> list[SegDataSample]:
        height, width = (s * stride for s in self.size)
        labels = torch.randint(0, self.num_classes, (batch, 1, height, width))
        labels[:, :, :3] = 255
        return [SegDataSample(gt_sem_seg=PixelData(data=label)) for label in labels]

    def test_defaults_stay(self):
        assert_defaults_stay(type(self.build()))

    def test_shapes(self):
        outputs = tensors(self.build().train()(self.features()))
        assert len(outputs) == self.num_outputs
        assert all(t.shape == (2, self.num_classes, *self.size) for t in outputs)

    def test_loss_and_gradients(self):
        head = randomise(self.build()).train()
        losses = head.loss(self.features(), self.samples(), train_cfg=None)
        total = sum(value for name, value in losses.items() if "loss" in name)
        assert torch.isfinite(total) and total > 0
        total.backward()
        assert_every_parameter_gets_gradient(head, self.zero_gradient)

    def test_gradients_for_one_image(self):
        (x,) = self.features(1)
        head = randomise(self.build())
        assert_right_gradients_for_one_image(head, x, lambda model, x: model([x]))

    def test_odd_size_and_batch_of_one(self):
        head = self.build().eval()
        with torch.no_grad():
            output = head.predict(
                self.features(1, extra=(3, 7)), [{"img_shape": (77, 125)}], test_cfg=None
            )
        assert output.shape == (1, self.num_classes, 77, 125)
        assert torch.isfinite(output).all()

    def test_round_trips(self):
        features = self.features(1)
        assert_round_trips(randomise(self.build()), lambda m: m(features))

    def test_autocast(self):
        features = self.features(1)
        assert_autocast_close(self.build(), lambda m: m(features))

    def test_half_precision_module(self):
        assert_half_precision_works(randomise(self.build()), (self.features(1),))

    def test_export(self):
        assert_exports(randomise(self.build()), (self.features(1),))

    def test_compiles_once_for_all_sizes(self):
        inputs = [(self.features(2, extra),) for extra in ((0, 0), (3, 7))]
        assert_compiles_once(randomise(self.build()), inputs, training=True)
