"""Losses and gradients that are not finite stop the run before the step."""

import copy
import gc
import math
from typing import Any

import pytest
import torch
from mmengine import dist
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.structures import BaseDataElement, PixelData
from mmseg.structures import SegDataSample

from mmseg_ext.durable import FiniteLossHook, finite_loss
from mmseg_ext.engine import PortableAmpOptimWrapper
from mmseg_ext.errors import RunError
from tests.durable.curve_model import CONFIG
from tests.engine.runs import built, log_text, run_tool, train_words, write_config
from tests.engine.states import UNVALIDATED, assert_same
from tests.messages import lines_with, raises_message
from tests.models import Operators


@pytest.mark.parametrize("fused", [False, True])
def test_a_run_stops_before_the_step_and_names_the_images(tmp_path, fused):
    """Iteration 6 of batches of 4 out of 8 images in order: images 4 to 7."""
    option = f"optim_wrapper.optimizer.fused={fused or None}"
    runner = built(*train_words(write_config(tmp_path, UNVALIDATED), tmp_path / "work", option))
    parse = runner.model.parse_losses

    def spoiled(losses):
        loss, logged = parse(losses)
        return loss * (math.nan if runner.iter + 1 == 6 else 1), logged

    runner.model.parse_losses = spoiled
    with raises_message(RunError, "nan", 6, todo="--resume") as error:
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

    def __init__(self, kind=OptimWrapper, fused=None, **settings):
        self.model = Weight()
        self.weight = self.model.weight
        optimizer = torch.optim.SGD([self.weight], lr=0.1, fused=fused)
        self.optim_wrapper = kind(optimizer=optimizer, **settings)
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
    with raises_message(RunError, "other", 1, todo="--resume"):
        wrappers[1].update_params(other.weight.sum() * math.nan)
    with raises_message(RunError, "nan", 1, todo="--resume"):
        wrappers[0].update_params(run.model(math.nan)["loss"])
    assert run.weight.item() == other.weight.item() == pytest.approx(0.9)


def test_a_loss_of_another_process_stops_all(monkeypatch):
    """An infinite loss can have finite gradients, so only its own process would see it."""
    told = "the loss is inf there"
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda flag, operation: flag.fill_(1))
    monkeypatch.setattr(dist, "all_gather_object", lambda own: [own, told])
    run = Run()
    with raises_message(RunError, where=told):
        run.go(FiniteLossHook(), [1])
    run.weight.register_hook(lambda gradient: gradient * math.nan)  # the average of all
    with raises_message(RunError, where=told):
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


CLIPS = [None, {"max_norm": 1.0}, {"type": "value", "clip_value": 5.0}]


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("more", [{}, {"accumulative_counts": 2}, {"dtype": "bfloat16"}], ids=str)
def test_gradients_are_checked_before_they_are_clipped(clip, fused, more):
    """Also of an accumulation, in mixed precision, and of steps that a kernel skips."""
    kind = PortableAmpOptimWrapper if "dtype" in more else OptimWrapper
    more = {"fused": fused, **more}  # mmengine removes the type from its argument
    run, hook = Run(kind, clip_grad=copy.copy(clip), **more), FiniteLossHook()
    own_step = run.optim_wrapper.step
    run.go(hook, [1, 1])
    before = run.weight.item()
    run.weight.register_hook(lambda gradient: gradient * math.inf)
    with raises_message(RunError, "weight", todo="--resume"):
        run.go(hook, [1, 1])
        hook.before_val(run)
    assert run.weight.item() == before < 1
    finished, hook = Run(kind, clip_grad=copy.copy(clip), **more), FiniteLossHook()
    finished.go(hook, [1, 1])
    hook.after_train(finished)
    assert finished.optim_wrapper.step.__func__ is own_step.__func__


@pytest.mark.parametrize(("labels", "told"), [((255, 255), True), ((255, 1), False)])
def test_a_batch_in_which_no_pixel_counts_is_named(labels, told):
    """In an accumulation all batches count together."""
    run, hook = Run(accumulative_counts=2), FiniteLossHook()
    hook.before_train(run)
    with raises_message(RunError, "nan", todo="--resume") as error:
        for label in labels:
            data = PixelData(data=torch.full((1, 2, 2), label))
            samples = [SegDataSample(gt_sem_seg=data, metainfo={"img_path": "a.png"})]
            loss = run.model(math.nan, data_samples=samples)["loss"]
            run.optim_wrapper.update_params(loss)
    assert ("no pixel of the batch counts" in str(error.value)) == told


def test_a_scaler_that_skips_all_steps_stops_the_run():
    """A loss that overflows once does not."""
    run, hook = Run(PortableAmpOptimWrapper, dtype="float16"), FiniteLossHook()
    run.go(hook, [1] + 19 * [math.nan] + [1] + 19 * [math.inf])
    hook.before_val(run)
    run.go(hook, [math.inf])
    with raises_message(RunError, "inf", 41, "41.png", todo="--resume"):
        hook.before_state_dict(run)


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
    with raises_message(RunError, "weight", 3, todo="--resume"):
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
    with raises_message(RunError, "inf", 2, todo="--resume"):
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
    with raises_message(RunError):
        run.optim_wrapper.update_params(embedding(torch.tensor([2])).sum() * math.nan)


def test_every_batch_of_an_accumulation_is_checked():
    run = Run(PortableAmpOptimWrapper, accumulative_counts=3, dtype="bfloat16")
    hook = FiniteLossHook()
    run.go(hook, [1, 1, 1, 1, math.inf])
    after = run.weight.item()
    with raises_message(RunError, "inf", 5, "4.png, 5.png, 6.png"):
        run.go(hook, [1])
    assert run.weight.item() == after


def test_the_check_starts_the_same_operators_for_any_number_of_parameters():
    """Apart from those of the step; on a GPU, Python starts each."""
    counts = []
    for number in (2, 200):
        run = Run(fused=True)
        more = [torch.nn.Parameter(torch.ones(2)) for _ in range(number)]
        run.optim_wrapper.optimizer.add_param_group({"params": more})
        FiniteLossHook().before_train(run)
        for parameter in more:
            parameter.grad = torch.ones(2)
        run.model(1)
        with Operators() as operators:
            run.optim_wrapper.step()
        counts.append(operators.kernels)
    assert counts[0] == counts[1] < 20


@pytest.fixture
def _durable(monkeypatch):
    monkeypatch.setattr(finite_loss, "DurableRunner", Run)  # which saves as one


@pytest.mark.usefixtures("_durable")
def test_fused_steps_are_skipped_and_reported_at_the_next():
    """Without reading the result before; the images are those of the skipped step."""
    run, hook = Run(fused=True, accumulative_counts=2), FiniteLossHook()
    run.go(hook, [1, 1, 1, math.inf, 1])
    after = run.weight.item()
    assert after == pytest.approx(0.9)
    with raises_message(RunError, "inf", 4, "3.png, 4.png"):
        run.go(hook, [1])
    assert run.weight.item() == after


@pytest.mark.usefixtures("_durable")
@pytest.mark.parametrize("point", ["before_state_dict", "before_val", "after_train"])
def test_a_skipped_step_is_reported_before_the_run_goes_on(point):
    run, hook = Run(fused=True), FiniteLossHook()
    run.go(hook, [1])
    getattr(hook, point)(run)
    run = Run(fused=True)
    run.weight.register_hook(lambda gradient: gradient * math.nan)
    hook = FiniteLossHook()
    run.go(hook, [1])
    assert run.weight.item() == 1
    with raises_message(RunError, "weight", 1, todo="--resume"):
        getattr(hook, point)(run)


@pytest.mark.usefixtures("_durable")
def test_a_fused_step_after_that_of_another_optimizer():
    """The step of one is skipped, so that of the other does not begin."""
    run, other, hook = Run(fused=True), Run(fused=True), FiniteLossHook()
    wrappers = run.optim_wrapper, other.optim_wrapper
    run.optim_wrapper = OptimWrapperDict(one=wrappers[0], two=wrappers[1])
    hook.before_train(run)
    wrappers[0].update_params(run.model(math.nan)["loss"])
    with raises_message(RunError, "nan", 1, todo="--resume"):
        wrappers[1].update_params(other.weight.sum())
    assert run.weight.item() == other.weight.item() == 1


@pytest.mark.parametrize("fused", [(True, None), (True, True)])
def test_the_result_is_awaited_where_it_must_be(monkeypatch, fused):
    """A plain Runner saves without asking; other optimizers cannot skip a step."""
    if fused != (True, True):
        monkeypatch.setattr(finite_loss, "DurableRunner", Run)
    run, other = Run(fused=fused[0]), Run(fused=fused[1])
    parts = {"one": run.optim_wrapper, "two": other.optim_wrapper}
    run.optim_wrapper = OptimWrapperDict(**parts)
    FiniteLossHook().before_train(run)
    with raises_message(RunError, "nan", 1, todo="--resume"):
        parts["one"].update_params(run.model(math.nan)["loss"])


SPOILED = """
custom_imports["imports"] += ["tests.engine.run_hooks"]
default_hooks.update(finite_loss=dict(type="FiniteLossHook"))
optim_wrapper.update(accumulative_counts={count}, clip_grad=dict(max_norm=0.5))
optim_wrapper["optimizer"] = {optimizer}
default_hooks["checkpoint"].update(interval={interval}, save_last=False, save_best=None, rule=None)
custom_hooks = [dict(type="EMAHook", momentum=0.1), dict(type="SpoilBatch", iteration={at})]
train_cfg.update(max_iters={end}, val_interval=100)
"""
FUSED = {
    "SGD": dict(type="SGD", lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "AdamW": dict(type="AdamW", lr=0.1, weight_decay=0.1, fused=True),
}


def spoiled(folder, **settings) -> Any:
    """Return the Runner of a run on random numbers, of which one batch is NaN."""
    path = folder / f"{len([*folder.iterdir()])}.py"
    given = {"count": 1, "interval": 1, "at": 4, "end": 8, "optimizer": FUSED["SGD"]} | settings
    path.write_text(CONFIG + SPOILED.format(**given))
    return built(path, "--work-dir", path.with_suffix(""))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("optimizer", FUSED.values(), ids=FUSED)
def test_weights_and_state_are_those_before_the_skipped_step(tmp_path, optimizer, count):
    """Bit by bit those of a run that ends there, although the next iteration has begun."""
    settings = {"optimizer": optimizer, "count": count, "interval": 100}
    expected = spoiled(tmp_path, **settings, at=0, end=4 - count)
    expected.train()
    stopped = spoiled(tmp_path, **settings)
    with raises_message(RunError, "nan", 4, todo="--resume"):
        stopped.train()
    assert stopped.iter == 3 + count
    states = []
    for runner in (stopped, expected):
        state = runner.optim_wrapper.state_dict()["state"]
        states.append([dict(runner.model.named_parameters()), state])
    assert assert_same(*copy.deepcopy(states)) >= 4


@pytest.mark.parametrize("case", ["saved", "validated", "at the end"])
def test_nothing_is_saved_after_a_skipped_step(tmp_path, case):
    runner = spoiled(
        tmp_path, interval=1 if case == "saved" else 100, end=4 if case == "at the end" else 8
    )
    if case == "validated":
        runner.train_loop.val_interval = 4
    with raises_message(RunError, "nan", 4, todo="--resume"):
        runner.train()
    saved = sorted(path.name for path in (tmp_path / "0").glob("*.pth"))
    assert saved == (["iter_2.pth", "iter_3.pth"] if case == "saved" else [])
    assert runner.iter == (3 if case == "saved" else 4)
    assert "Iter(val)" not in log_text(tmp_path / "0")


@pytest.mark.distributed
def test_a_skipped_step_stops_two_processes(tmp_path):
    """At the next step. The batch of one process is NaN, and the gradients of both."""
    text = CONFIG + SPOILED.format(count=1, interval=3, at=4, end=8, optimizer=FUSED["AdamW"])
    (tmp_path / "curve.py").write_text(text.replace("iteration=4", "iteration=4, rank=1"))
    result = run_tool("train.py", "curve.py", ranks=2, folder=tmp_path)
    assert result.returncode == 1
    assert len(lines_with(result.stderr, "nan", 4)) == 2
    work = tmp_path / "work_dirs/curve"
    assert [path.name for path in work.glob("*.pth")] == ["iter_3.pth"]
