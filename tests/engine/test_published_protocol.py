"""The optimizer groups and learning rates of the published VOC training."""

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmseg.registry import MODELS, PARAM_SCHEDULERS
from torch import nn

from tests.configs import CONFIGS

LR, ITERATIONS, POWER = 9e-3, 45000, 0.9


def tiny_model() -> nn.Module:
    norm = {"norm_cfg": {"type": "BN"}}
    backbone = {"type": "ResNetV1c", "depth": 18, "base_channels": 4, "stem_channels": 4, **norm}
    head = {"type": "EAHead", "in_channels": 32, "channels": 4, "num_classes": 3, **norm}
    head["memory_size"] = 2
    return MODELS.build({"type": "EncoderDecoder", "backbone": backbone, "decode_head": head})


@pytest.fixture(scope="module")
def config():
    return Config.fromfile(CONFIGS / "ea_r101_voc_45k.py")


def test_three_groups(config):
    model = tiny_model()
    groups = build_optim_wrapper(model, config.optim_wrapper).optimizer.param_groups
    convs = [m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d)]
    assert any(isinstance(m, nn.Conv1d) for m in convs)  # the memories
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    expected = [
        (LR, 1e-4, {id(m.weight) for m in convs}),
        (LR, 0.0, {id(m.weight) for m in norms}),
        (2 * LR, 0.0, {id(m.bias) for m in norms + convs if m.bias is not None}),
    ]
    assert [(g["lr"], g["weight_decay"], {id(p) for p in g["params"]}) for g in groups] == expected
    assert all(g["momentum"] == 0.9 and not g["nesterov"] for g in groups)
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))


def test_shared_and_frozen_parameters(config):
    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    groups = build_optim_wrapper(model, config.optim_wrapper).optimizer.param_groups
    assert [[id(p) for p in g["params"]] for g in groups] == [
        [id(model[0].weight)],
        [id(model[0].bias), id(model[1].bias)],
    ]


@pytest.mark.parametrize("key", ["bias_lr_mult", "bias_decay_mult", "norm_decay_mult"])
def test_multipliers_are_1_by_default(config, key):
    plain = {**config.optim_wrapper, "paramwise_cfg": {key: 1.0}}
    groups = build_optim_wrapper(tiny_model(), plain).optimizer.param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(LR, 1e-4)] * 3
    plain["paramwise_cfg"] = {f"dwconv_{key}": 1.0}
    with pytest.raises(ValueError, match=f"dwconv_{key}"):
        build_optim_wrapper(tiny_model(), plain)


def test_rates_end_at_the_minimum():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    settings = {"type": "HeldPolyLR", "power": 2.0, "eta_min": 0.2, "end": 21, "by_epoch": False}
    scheduler = PARAM_SCHEDULERS.build({**settings, "optimizer": optimizer, "interval": 5})
    rates = []
    for _ in range(21):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    held = [0.2 + 0.8 * (1 - i / 20) ** 2 for i in (0, 5, 10, 15)]
    assert rates == pytest.approx([rate for rate in held for _ in range(5)] + [0.2])


def test_rates_of_every_iteration(config):
    """All 45,001 iterations, including the last, whose rate is zero."""
    (scheduler_config,) = config.param_scheduler
    assert config.train_cfg.max_iters == ITERATIONS + 1
    optimizer = build_optim_wrapper(tiny_model(), config.optim_wrapper).optimizer
    scheduler = PARAM_SCHEDULERS.build({**scheduler_config, "optimizer": optimizer})
    optimizer._global_step = 0  # the order of optimizer and scheduler steps is not under test
    ours = []
    for _ in range(config.train_cfg.max_iters):
        ours.append([group["lr"] for group in optimizer.param_groups])
        scheduler.step()
    ours = torch.tensor(ours, dtype=torch.float64)
    held = torch.arange(ITERATIONS + 1, dtype=torch.float64) // 10 * 10  # as the published loop
    theirs = LR * (1 - held / ITERATIONS) ** POWER
    torch.testing.assert_close(ours, theirs[:, None] * torch.tensor([1, 1, 2]), rtol=1e-6, atol=0)
