"""Groups with equal settings are computed together, bit by bit as each group by itself."""

import copy
import logging
from typing import Any

import pytest
import torch
from mmengine.optim import OptimWrapperDict, build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS
from torch import nn

from mmseg_ext.durable import optimizer_groups, runner
from mmseg_ext.durable.optimizer_groups import merge_groups, select_fused_steps
from tests.engine.runs import built, log_text, train_here, train_words, write_config
from tests.engine.states import RANDOM, STATE, UNVALIDATED, assert_same, assert_same_runs, logged
from tests.messages import lines_with

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


@pytest.mark.slow
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
    assert not lines_with(log_text(earlier), "iter_4.pth", "lr")
    train_here(config, merged)
    one, two = (torch.load(work / "iter_6.pth", weights_only=True) for work in (merged, earlier))
    for content in (one, two):
        content["optimizer"] = in_order(content["optimizer"])
    for key in STATE:
        assert assert_same(one[key], two[key], key) > 0
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


@pytest.fixture
def _fused_on_cpus(monkeypatch):
    monkeypatch.setattr(optimizer_groups, "FUSED_DEVICES", ("cpu",))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_fused_is_the_default_on_a_gpu_only(monkeypatch, kind):
    model = Network()
    optimizer = kind(model.parameters(), lr=0.1)
    select_fused_steps(optimizer, model)
    assert optimizer.param_groups[0]["fused"] is None
    monkeypatch.setattr(optimizer_groups, "FUSED_DEVICES", ("cpu",))
    select_fused_steps(optimizer, model)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]
    model.backbone(torch.ones(1, 7)).sum().backward()
    optimizer.step()


LEFT = {
    "foreach": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, foreach=True),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), lr=0.1, fused=False),
    "one group": lambda m: torch.optim.SGD(
        [{"params": [p], "foreach": i == 1 or None} for i, p in enumerate(m.parameters())], lr=0.1
    ),
    "differentiable": lambda m: torch.optim.Adam(m.parameters(), lr=0.1, differentiable=True),
    "dampening": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.1),
    "other class": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.1),
    "half": lambda m: torch.optim.AdamW(m.half().parameters(), lr=0.1),
    "complex": lambda m: torch.optim.SGD([nn.Parameter(torch.ones(2, dtype=torch.cfloat))], lr=1),
    "two devices": lambda m: torch.optim.SGD([m.backbone[0].weight, m.other.weight], lr=0.1),
    "sparse": lambda m: torch.optim.SGD(m.embedding.parameters(), lr=0.1),
}


@pytest.mark.parametrize("case", LEFT)
@pytest.mark.usefixtures("_fused_on_cpus")
def test_the_default_does_not_touch_what_fused_steps_refuse(case):
    """And what the config selects."""
    model: Any = Network()
    model.other = nn.Linear(2, 2, device="meta")
    model.embedding = nn.Embedding(3, 2, sparse=case == "sparse")
    optimizer: Any = LEFT[case](model)
    before = copy.deepcopy([{**group, "params": []} for group in optimizer.param_groups])
    select_fused_steps(optimizer, model)
    assert [{**group, "params": []} for group in optimizer.param_groups] == before


@pytest.mark.usefixtures("_fused_on_cpus")
def test_fused_steps_take_a_gradient_that_comes_later():
    """As of a layer that is frozen at first; the result is that of torch's other steps."""
    models = Network(), Network()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    select_fused_steps(optimizers[0], models[0])
    merge_groups(optimizers[0])
    for step in range(4):
        for model, optimizer in zip(models, optimizers, strict=True):
            model.backbone[3].requires_grad_(step > 1)
            optimizer.zero_grad()
            model.backbone(torch.ones(1, 7)).square().sum().backward()
            optimizer.step()
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.slow
@pytest.mark.usefixtures("_fused_on_cpus")
def test_new_runs_are_fused_and_resumed_ones_as_they_began(tmp_path, monkeypatch):
    """Without a warning of a setting that is in no config; a restart is exact."""
    config = write_config(tmp_path, RANDOM + UNVALIDATED + NORMS)
    works = {name: tmp_path / name for name in ("whole", "cut", "earlier")}
    train_here(config, works["whole"])
    train_here(config, works["cut"], "train_cfg.max_iters=4")
    with monkeypatch.context() as patch:
        patch.setattr(optimizer_groups, "FUSED_DEVICES", ())
        train_here(config, works["earlier"], "train_cfg.max_iters=4")
    for name in ("cut", "earlier"):
        train_here(config, works[name], flags=("--resume",))
        assert not lines_with(log_text(works[name]), "iter_4.pth", "lr")
    assert_same_runs(works["whole"], works["cut"], 6)
    fused = {}
    for name, work in works.items():
        groups = torch.load(work / "iter_6.pth", weights_only=True)["optimizer"]["param_groups"]
        fused[name] = {group["fused"] for group in groups}
    assert fused == {"whole": {True}, "cut": {True}, "earlier": {None}}
