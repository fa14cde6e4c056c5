"""fuse_model: the same function, fewer operations, and the original left alone."""

import torch
from mmcv.cnn import ConvModule
from mmseg.registry import MODELS
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmseg_ext import fuse_model, get_model
from tests.models import assert_same, randomise


def assert_fused(model: nn.Module, x: torch.Tensor, rtol: float) -> None:
    """Fusing removes every batch norm, keeps the outputs, and leaves the model alone."""
    model = randomise(model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    fused = fuse_model(model)
    model.eval()
    with torch.no_grad():
        assert_same(fused(x), model(x), rtol=rtol)
    assert not any(isinstance(m, _BatchNorm) for m in fused.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_segmentor():
    assert_fused(get_model("ea_r18_shapes"), torch.randn(1, 3, 65, 97), 1e-5)


def test_bottlenecks():
    config = dict(type="ResNet", depth=50, base_channels=8, stem_channels=8)
    model = MODELS.build({**config, "norm_cfg": dict(type="BN")})
    assert_fused(model, torch.randn(1, 3, 64, 64), 3e-5)  # 53 layers' rounding


def test_other_norms_stay():
    """A norm before its convolution, and a norm without running statistics."""
    before = ConvModule(4, 4, 1, norm_cfg=dict(type="BN"), order=("norm", "conv", "act"))
    without = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
    x = torch.randn(2, 4, 5, 5)
    for model in (randomise(before).eval(), without.eval()):
        fused = fuse_model(model)
        with torch.no_grad():
            assert_same(fused(x), model(x), rtol=0)
        assert any(isinstance(m, _BatchNorm) for m in fused.modules())
