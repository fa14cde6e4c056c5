"""A loss that is no number stops the run before the step, and says where it came from."""

import math

import numpy as np
import pytest
import torch
from mmengine.optim import OptimWrapper
from PIL import Image

from mmseg_ext.checkpoint.files import read_checkpoint
from mmseg_ext.commands.train import parser as train_parser
from mmseg_ext.commands.train import runner_of
from mmseg_ext.engine.amp import PortableAmpOptimWrapper
from mmseg_ext.engine.finite_loss import FiniteLossHook
from mmseg_ext.errors import RunError
from tests.engine.runs import SIZE, log_text, train_here, train_words, write_config
from tests.engine.states import UNVALIDATED


def test_it_stops_before_the_step_and_names_the_images(tmp_path):
    """Iteration 6 of batches of 4 of 8 images in their order: images 4 to 7."""
    spoil = "custom_hooks = [dict(type='SpoilLossAt', iteration=6, value=float('nan'))]\n"
    config = write_config(tmp_path, UNVALIDATED + spoil)
    runner = runner_of(train_parser().parse_args(train_words(config, tmp_path / "work")))
    weights = {}
    step = torch.optim.SGD.step

    def keep(optimizer, *a, **k):
        step(optimizer, *a, **k)
        weights.update((n, p.detach().clone()) for n, p in runner.model.named_parameters())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", keep)
        with pytest.raises(RunError) as error:
            runner.train()
    assert "nan at iteration 6" in str(error.value)
    named = [f"images/{i}.png" in str(error.value) for i in range(8)]
    assert named == [False] * 4 + [True] * 4
    for name, parameter in runner.model.named_parameters():
        assert torch.equal(parameter, weights[name])  # as after iteration 5
        assert parameter.isfinite().all()
    saved = read_checkpoint(tmp_path / "work/iter_4.pth")  # the last good one, the only one
    assert all(v.isfinite().all() for v in saved["state_dict"].values())
    assert [p.name for p in (tmp_path / "work").glob("*.pth")] == ["iter_4.pth"]


class Run:
    """The parts of a Runner that the hook looks at: a weight of 1, trained by a real wrapper."""

    def __init__(self, kind=OptimWrapper, **settings):
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.model = torch.nn.ParameterDict({"weight": self.weight})
        self.optim_wrapper = kind(optimizer=torch.optim.SGD([self.weight], lr=0.1), **settings)
        self.iter = 0

    def go(self, hook, values):
        """One iteration for each of `values`, which the loss is multiplied with."""
        if self.iter == 0:
            hook.before_train(self)
        for value in values:
            hook.before_train_iter(self, self.iter, {"data_samples": ()})
            self.optim_wrapper.update_params(self.weight.sum() * value)
            self.iter += 1


def test_steps_skipped_by_the_scaler_are_no_failure_until_too_many_in_a_row():
    """Float16's gradient scaler, which runs on the CPU for this."""
    run, hook, nan = Run(PortableAmpOptimWrapper), FiniteLossHook(max_skipped=3), math.nan
    run.optim_wrapper.loss_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run.go(hook, [1, nan, nan, nan, 1, nan, nan, nan])
    np.testing.assert_allclose(run.weight.item(), 1 - 2 * 0.1, rtol=1e-6)
    assert run.optim_wrapper.loss_scaler.get_scale() == 2.0 ** (10 - 6)
    with pytest.raises(RunError, match="skipped 4 steps in a row, up to iteration 9"):
        run.go(hook, [nan])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_finite_loss_with_such_a_gradient_stops_too(value):
    run, hook = Run(), FiniteLossHook()
    run.go(hook, [1])
    run.weight.register_hook(lambda gradient: gradient * value)
    with pytest.raises(RunError, match="gradient of weight is not finite at iteration 2;"):
        run.go(hook, [1])
    assert run.weight.item() == pytest.approx(0.9)


def test_every_batch_of_an_accumulation_is_looked_at():
    run = Run(PortableAmpOptimWrapper, accumulative_counts=3, dtype="bfloat16")
    hook = FiniteLossHook()
    run.go(hook, [1, 1, 1, 1, math.inf])
    after = run.weight.item()
    with pytest.raises(RunError, match="inf at iteration 5;"):
        run.go(hook, [1])
    assert run.weight.item() == after


def test_arguments():
    with pytest.raises(ValueError, match="float64"):
        Run(PortableAmpOptimWrapper, dtype="float64")
    with pytest.raises(ValueError, match="loss_scale must be 'dynamic'"):
        Run(PortableAmpOptimWrapper, loss_scale="512")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="float16"):
            Run(PortableAmpOptimWrapper, dtype="float16")
        assert not Run(PortableAmpOptimWrapper).optim_wrapper.loss_scaler.is_enabled()


def test_batches_without_a_label_are_a_warning(tmp_path):
    """All pixels are ignored: loss 0 and accuracy 100, which nothing else tells."""
    config = write_config(tmp_path, UNVALIDATED)
    for path in (tmp_path / "data" / "labels").iterdir():
        Image.new("L", (SIZE, SIZE), 255).save(path)
    train_here(config, tmp_path / "work", "train_cfg.max_iters=4")
    assert log_text(tmp_path / "work").count("loss of the first 3 iterations is exactly 0") == 1
