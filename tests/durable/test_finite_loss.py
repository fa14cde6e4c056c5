"""Losses and gradients that are not finite stop the run before the step."""

import gc
import math

import pytest
import torch
from mmengine import dist
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.structures import BaseDataElement

from mmseg_ext.durable import FiniteLossHook
from mmseg_ext.engine import PortableAmpOptimWrapper
from mmseg_ext.errors import RunError
from tests.engine.runs import built, train_words, write_config
from tests.engine.states import UNVALIDATED


def test_a_run_stops_before_the_step_and_names_the_images(tmp_path):
    """Iteration 6 of batches of 4 out of 8 images in order: images 4 to 7."""
    runner = built(*train_words(write_config(tmp_path, UNVALIDATED), tmp_path / "work"))
    parse = runner.model.parse_losses

    def spoiled(losses):
        loss, logged = parse(losses)
        return loss * (math.nan if runner.iter + 1 == 6 else 1), logged

    runner.model.parse_losses = spoiled
    with pytest.raises(RunError, match="nan at iteration 6") as error:
        runner.train()
    named = [f"images/{i}.png" in str(error.value) for i in range(8)]
    assert named == [False] * 4 + [True] * 4
    assert all(p.isfinite().all() for p in runner.model.parameters())
    assert [p.name for p in (tmp_path / "work").glob("*.pth")] == ["iter_4.pth"]


class Weight(BaseModel):
    """A weight of 1; the loss is a multiple."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, value, data_samples=()):
        return {"loss": self.weight.sum() * value}


class Run:
    """The parts of a Runner that the hook uses: a model, trained by a real wrapper."""

    def __init__(self, kind=OptimWrapper, **settings):
        self.model = Weight()
        self.weight = self.model.weight
        self.optim_wrapper = kind(optimizer=torch.optim.SGD([self.weight], lr=0.1), **settings)
        self.iter = 0

    def go(self, hook, values):
        """Run one iteration for each of `values`, which multiply the loss."""
        if self.iter == 0:
            hook.before_train(self)
        for value in values:
            samples = [BaseDataElement(metainfo={"img_path": f"{self.iter + 1}.png"})]
            self.optim_wrapper.update_params(self.model(value, data_samples=samples)["loss"])
            self.iter += 1


def test_several_optimizers():
    """One wrapper per part, as for GANs: each is checked before its own step."""
    run, other, hook = Run(), Run(), FiniteLossHook()
    wrappers = run.optim_wrapper, other.optim_wrapper
    run.optim_wrapper = OptimWrapperDict(one=wrappers[0], two=wrappers[1])
    hook.before_train(run)
    run.optim_wrapper["one"].update_params(run.model(1)["loss"])
    wrappers[1].update_params(other.weight.sum())
    run.model.other = other.weight
    with pytest.raises(RunError, match="gradient of other is not finite at iteration 1;"):
        wrappers[1].update_params(other.weight.sum() * math.nan)
    with pytest.raises(RunError, match="nan at iteration 1;"):
        wrappers[0].update_params(run.model(math.nan)["loss"])
    assert run.weight.item() == other.weight.item() == pytest.approx(0.9)


def test_a_loss_of_another_process_stops_all(monkeypatch):
    """An infinite loss can have finite gradients, so only its own process would see it."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda flag, operation: flag.fill_(1))
    monkeypatch.setattr(dist, "all_gather_object", lambda own: [own, "the loss is inf there"])
    run = Run()
    with pytest.raises(RunError, match="the loss is inf there"):
        run.go(FiniteLossHook(), [1])
    run.weight.register_hook(lambda gradient: gradient * math.nan)  # the average of all
    with pytest.raises(RunError, match="the loss is inf there"):
        run.go(FiniteLossHook(), [1])
    assert run.weight.item() == 1


@pytest.mark.parametrize(
    ("loss_scale", "first", "second"),
    [(8.0, 8, 8), ({"init_scale": 8.0, "growth_interval": 1}, 16, 8), ("dynamic", 65536, 32768)],
)
def test_the_loss_scale_is_fixed_or_dynamic(loss_scale, first, second):
    """It grows after enough finite steps, and halves after a step that the scaler skips."""
    run = Run(PortableAmpOptimWrapper, dtype="float16", loss_scale=loss_scale)
    for value, scale in ((1, first), (math.nan, second)):
        run.go(FiniteLossHook(), [value])
        assert run.optim_wrapper.loss_scaler.get_scale() == scale
        assert run.weight.item() == pytest.approx(0.9)


def test_the_scale_of_a_checkpoint_continues():
    first, resumed = (
        Run(PortableAmpOptimWrapper, dtype="float16", loss_scale=scale).optim_wrapper
        for scale in (8.0, 2.0)
    )
    resumed.load_state_dict(first.state_dict())
    assert resumed.loss_scaler.get_scale() == 8


def test_a_gradient_that_is_not_finite_stops_the_run():
    run, hook, kept = Run(), FiniteLossHook(), []
    for _ in range(2):
        run.go(hook, [1])
        kept.append(sum(type(value) is torch.Tensor for value in gc.get_objects()))
    assert kept[0] == kept[1]  # no loss of a finished step
    run.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(RunError, match="gradient of weight is not finite at iteration 3;"):
        run.go(hook, [1])
    assert run.weight.item() == pytest.approx(0.8)


def test_an_infinite_loss_with_finite_gradients_is_not_saved():
    """Within an accumulation, before the step."""
    run, hook = Run(accumulative_counts=3), FiniteLossHook()
    run.go(hook, [1])
    hook.before_state_dict(run)
    run.model.forward = lambda value, data_samples: {"loss": run.weight.sum() + value}
    run.go(hook, [math.inf])
    assert run.weight.grad.isfinite()
    with pytest.raises(RunError, match="inf at iteration 2;"):
        hook.before_state_dict(run)


def test_models_that_plain_mmengine_trains():
    """A parameter without values, a sparse gradient, and a forward that returns no losses."""
    run, hook = Run(), FiniteLossHook()
    run.model.forward = lambda value, data_samples=(): {"features": value}
    hook.before_train(run)
    run.model(torch.ones(1))
    embedding = torch.nn.Embedding(3, 2, sparse=True)
    empty = torch.nn.Parameter(torch.ones(0))
    group = {"params": [*embedding.parameters(), empty]}
    run.optim_wrapper.optimizer.add_param_group(group)
    rows = embedding(torch.tensor([1, 1]))
    run.optim_wrapper.update_params(rows.sum() + empty.sum())
    assert embedding.weight.grad is None or embedding.weight.isfinite().all()
    with pytest.raises(RunError, match="not finite"):
        run.optim_wrapper.update_params(embedding(torch.tensor([2])).sum() * math.nan)


def test_every_batch_of_an_accumulation_is_checked():
    run = Run(PortableAmpOptimWrapper, accumulative_counts=3, dtype="bfloat16")
    hook = FiniteLossHook()
    run.go(hook, [1, 1, 1, 1, math.inf])
    after = run.weight.item()
    with pytest.raises(RunError, match=r"inf at iteration 5;.* 4.png, 5.png, 6.png\."):
        run.go(hook, [1])
    assert run.weight.item() == after
