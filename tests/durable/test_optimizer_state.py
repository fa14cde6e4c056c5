"""An optimizer's state in a checkpoint fits the model, and the config selects how steps are run."""

import copy
import re

import pytest
import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmseg_ext.durable import optimizer_groups
from mmseg_ext.durable.optimizer_state import fit_optimizer_state
from mmseg_ext.errors import CheckpointError
from tests.engine.states import assert_same


def stepped(kind=torch.optim.AdamW, **settings) -> tuple[nn.Module, OptimWrapper]:
    """Return a model and its optimizer after one step."""
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    wrapper = OptimWrapper(kind(model.parameters(), lr=0.1, **settings))
    wrapper.update_params(model(torch.ones(1, 2, 4, 4)).square().sum())
    return model, wrapper


def test_the_implementation_is_the_configs():
    """Also in a file whose groups ask for another one, or maximize the loss."""
    _, wrapper = stepped(fused=True)
    saved = copy.deepcopy(wrapper.state_dict())
    changed = copy.deepcopy(saved)
    (group,) = changed["param_groups"]
    group.update(fused=False, foreach=True, capturable=True, differentiable=True, maximize=True)
    fit_optimizer_state(wrapper, changed, "a.pth")
    assert_same(changed, saved)


@pytest.mark.parametrize("more", [{}, {"foreach": True}, {"fused": False}], ids=str)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_that_began_with_fused_steps_continues_with_them(monkeypatch, device, more):
    """On devices where they are the default, unless the config selects otherwise."""
    monkeypatch.setattr(optimizer_groups, "FUSED_DEVICES", (device,))
    saved = copy.deepcopy(stepped(fused=True)[1].state_dict())
    _, wrapper = stepped(**more)
    fit_optimizer_state(wrapper, saved, "a.pth")
    default = device == "cpu" and not more
    assert saved["param_groups"][0]["fused"] is (True if default else more.get("fused"))
    assert saved["param_groups"][0]["foreach"] is more.get("foreach")
    wrapper.load_state_dict(saved)
    wrapper.step()


def test_steps_are_counted_where_torch_reads_them_without_waiting():
    """mmengine loads all tensors to the GPU; torch counts there only for fused steps."""
    for fused, expected in ((True, "meta"), (False, "cpu")):
        _, wrapper = stepped()
        saved = copy.deepcopy(wrapper.state_dict())
        wrapper.optimizer.param_groups[0].update(
            params=[p.to("meta") for p in wrapper.optimizer.param_groups[0]["params"]], fused=fused
        )
        fit_optimizer_state(wrapper, saved, "a.pth")
        assert {state["step"].device.type for state in saved["state"].values()} == {expected}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("key", "shape"), [("exp_avg", (1,)), ("exp_avg", ()), ("step", (0,))])
def test_a_state_of_another_shape_is_refused(several, key, shape):
    """With `fused=True` in the file torch would write behind the tensor, without an error."""
    _, wrapper = stepped()
    saved = copy.deepcopy(wrapper.state_dict())
    saved["state"][0][key] = torch.zeros(shape)
    saved["param_groups"][0]["fused"] = True
    if several:
        saved, wrapper = {"g": saved}, OptimWrapperDict(g=wrapper)
    expected = (3, 2, 3, 3) if key == "exp_avg" else ()
    line = re.escape(f"{key} has the shape {shape} for a parameter of shape {expected}")
    with pytest.raises(CheckpointError, match=rf"^a\.pth: .*{line}.*$"):
        fit_optimizer_state(wrapper, saved, "a.pth")


def test_other_memory_layouts_are_copied():
    """The fused step reads neither strides nor the size of the storage."""
    _, wrapper = stepped(fused=True)
    expected = wrapper.state_dict()["state"][0]["exp_avg"]
    for other in (expected.contiguous(), torch.ones(1).expand(3, 2, 3, 3)):  # one value in memory
        saved = copy.deepcopy(wrapper.state_dict())
        saved["state"][0]["exp_avg"] = other
        fit_optimizer_state(wrapper, saved, "a.pth")
        fitted = saved["state"][0]["exp_avg"]
        assert fitted.stride() == expected.stride() != other.stride()
        assert torch.equal(fitted, other) and fitted.untyped_storage().nbytes() == 3 * 2 * 9 * 4


def test_other_states_have_any_shape():
    """Adafactor keeps a row and a column of each matrix."""
    model, wrapper = stepped(torch.optim.Adafactor)
    saved = copy.deepcopy(wrapper.state_dict())
    assert saved["state"][0]["row_var"].shape != model.weight.shape
    fit_optimizer_state(wrapper, saved, "a.pth")
    wrapper.load_state_dict(saved)


@pytest.mark.parametrize(
    "crafted",
    [{}, {"param_groups": [], "state": {}}, {"param_groups": [{"params": [0]}], "state": {}}, 3],
    ids=str,
)
def test_groups_of_another_model_are_refused(crafted):
    with pytest.raises(CheckpointError, match=r"^a\.pth: .*load_from=a\.pth.*$"):
        fit_optimizer_state(stepped()[1], crafted, "a.pth")
