"""Groups with equal settings are computed together, bit by bit as each group by itself."""

import copy
import logging
from typing import Any

import pytest
import torch
from mmengine.optim import OptimWrapperDict, build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS
from torch import nn

from mmseg_ext.durable import runner
from mmseg_ext.durable.optimizer_groups import merge_groups
from tests.engine.runs import built, log_text, train_here, train_words, write_config
from tests.engine.states import RANDOM, STATE, UNVALIDATED, assert_same, logged

# "2.bias" is of a norm; the names have a prefix.
PARAMWISE = {
    "norm_decay_mult": 0.0,
    "bias_lr_mult": 2.0,
    "custom_keys": {"3.bias": {"lr_mult": 0.5, "decay_mult": 0.0, "of_a_user": [1, 2]}},
}
ADAMW = {"type": "AdamW", "lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.99]}
SGD = {"type": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
SCHEDULES = [
    {"type": "LinearLR", "start_factor": 0.1, "end": 3, "by_epoch": False},
    {"type": "PolyLR", "power": 0.9, "begin": 2, "end": 9, "by_epoch": False},
    {"type": "CosineAnnealingMomentum", "T_max": 9, "by_epoch": False},
    {"type": "ReduceOnPlateauLR", "monitor": "score", "patience": 0, "min_value": 1e-6},
]


@pytest.fixture(autouse=True)
def _quiet_constructor():
    logging.disable(logging.INFO)  # a line for each parameter
    yield
    logging.disable(logging.NOTSET)


class Layers(nn.Sequential):
    """Five linear layers, each with a norm; the second linear layer is frozen."""

    def __init__(self):
        super().__init__()
        for _ in range(5):
            self.extend([nn.Linear(7, 7), nn.LayerNorm(7), nn.GELU()])
        self[3].requires_grad_(False)

    def get_layer_depth(self, name: str, prefix: str) -> tuple[int, int]:
        return int(name.removeprefix(prefix).split(".")[0]) // 3, 5


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = Layers()


def wrapper_of(model: nn.Module, optimizer: dict, merges: bool, **settings) -> Any:
    paramwise = copy.deepcopy(settings.pop("paramwise_cfg", PARAMWISE))
    wrapper = build_optim_wrapper(
        model, {"optimizer": dict(optimizer), "paramwise_cfg": paramwise, **settings}
    )
    if merges:
        merge_groups(wrapper.optimizer)
    return wrapper


def in_order(state: dict) -> dict:
    """Return an optimizer's state in the order of its parameters, not of their first steps."""
    return {**state, "state": dict(sorted(state["state"].items()))}


def five_steps(optimizer: dict, merges: bool, **settings) -> tuple[list, list[int]]:
    """Return weights and state of a clipped training after each step, and the numbers of groups.

    The last norm gets its first gradient in the second step.
    """
    model, states, counts = Network(), [], []
    wrapper = wrapper_of(model, optimizer, merges, clip_grad={"max_norm": 0.5}, **settings)
    wrapper.optimizer.register_step_pre_hook(lambda own, *_: counts.append(len(own.param_groups)))
    schedules = [PARAM_SCHEDULERS.build({**s, "optimizer": wrapper}) for s in SCHEDULES]
    model.backbone[13].requires_grad_(False)
    for step in range(5):
        inputs = torch.randn(4, 7, generator=torch.Generator().manual_seed(step))
        wrapper.update_params(model.backbone(inputs).square().sum())
        model.backbone[13].requires_grad_(True)
        for schedule in schedules[:3]:
            schedule.step()
        schedules[3].step({"score": step})
        states += [model.state_dict(), in_order(wrapper.state_dict()), wrapper.get_lr()]
        states += [schedule.state_dict() for schedule in schedules]
        states = copy.deepcopy(states)
    return states, counts


@pytest.mark.parametrize("more", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["AdamW", "SGD"])
def test_five_steps_equal_those_of_one_group_per_parameter(optimizer, more):
    """With clipping, four schedules, a frozen layer, and a group with an entry of its own."""
    expected, before = five_steps({**optimizer, **more}, merges=False)
    found, after = five_steps({**optimizer, **more}, merges=True)
    assert assert_same(found, expected) > 1000
    assert before == [18] * 5 and after == [4, 5 if optimizer is SGD else 4, 4, 4, 4]


def test_layer_wise_rates_stay():
    """Of five depths, and in each without the decay of norms and biases."""
    settings = {"constructor": "LayerDecayOptimWrapperConstructor"}
    paramwise = {"layer_decay_rate": 0.7, "norm_decay_mult": 0.0, "bias_decay_mult": 0.0}
    runs = [five_steps(ADAMW, m, paramwise_cfg=paramwise, **settings) for m in (False, True)]
    (expected, before), (found, after) = runs
    assert assert_same(found, expected) > 1000
    assert before == [18] * 5 and after == [9] * 5


def test_an_error_in_a_step_leaves_the_groups():
    wrapper = wrapper_of(Network(), SGD, merges=True)
    groups = wrapper.optimizer.param_groups

    def stop(*_):
        raise KeyboardInterrupt

    wrapper.optimizer.register_step_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        wrapper.step()
    assert wrapper.optimizer.param_groups is groups and len(groups) == 18


def test_optimizers_of_other_packages_do_not_change():
    """Their steps can use values of a group, as its gradients' norm."""

    class Normalized(torch.optim.SGD):
        pass

    optimizer: Any = Normalized([{"params": [p]} for p in Network().parameters()], lr=0.1)
    merge_groups(optimizer)
    seen = []
    optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups))
    optimizer.step()
    assert seen[0] is optimizer.param_groups


NORMS = """
optim_wrapper["optimizer"]["weight_decay"] = 0.01
optim_wrapper.update(paramwise_cfg=dict(norm_decay_mult=0.0), clip_grad=dict(max_norm=0.1))
train_dataloader["batch_size"] = 2
train_cfg["max_iters"] = 6
"""


def test_runs_of_earlier_versions_continue_exactly(tmp_path, monkeypatch):
    """They computed one group per parameter; the files are the same, so these resume there, too."""
    config = write_config(tmp_path, RANDOM + UNVALIDATED + NORMS)
    merged, earlier = tmp_path / "merged", tmp_path / "earlier"
    with monkeypatch.context() as patch:
        patch.setattr(runner, "merge_groups", lambda optimizer: None)
        train_here(config, earlier, "train_cfg.max_iters=4")
    groups = torch.load(earlier / "iter_4.pth", weights_only=True)["optimizer"]["param_groups"]
    assert len(groups) > 50 and all(len(group["params"]) == 1 for group in groups)
    train_here(config, earlier, flags=("--resume",))
    assert "overrides settings" not in log_text(earlier)
    train_here(config, merged)
    contents = [torch.load(work / "iter_6.pth", weights_only=True) for work in (merged, earlier)]
    for content in contents:
        content["optimizer"] = in_order(content["optimizer"])
    for key in STATE:
        assert assert_same(*(content[key] for content in contents), key) > 0
    assert logged(merged) == logged(earlier) and len(logged(merged)) == 6


def test_a_runner_merges_the_groups_of_each_optimizer(tmp_path):
    words = train_words(write_config(tmp_path, RANDOM + NORMS), tmp_path / "work")
    own: Any = built(*words)
    parts = {name: wrapper_of(Network(), SGD, merges=False) for name in "ab"}
    several: Any = own.build_optim_wrapper(OptimWrapperDict(**parts))
    seen = []
    for wrapper in (*several.values(), own.build_optim_wrapper(own.optim_wrapper)):
        wrapper.optimizer.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups))
        wrapper.step()
    assert [len(groups) for groups in seen] == [4, 4, 2]
