"""A loss that is no number stops the run before the step, and says where it came from."""

import math
from pathlib import Path

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
from mmseg_ext.errors import NonFiniteLoss
from tests.engine.runs import SIZE, write_config
from tests.engine.states import UNVALIDATED


def test_it_stops_before_the_step_and_names_the_images(tmp_path):
    """Iteration 6 of batches of 4 of 8 images in their order: images 4 to 7."""
    spoil = "custom_hooks = [dict(type='SpoilLossAt', iteration=6, value=float('nan'))]\n"
    config = write_config(tmp_path, UNVALIDATED + spoil)
    args = [str(config), "--work-dir", str(tmp_path / "work")]
    runner = runner_of(train_parser().parse_args(args))
    weights = {}
    step = torch.optim.SGD.step

    def keep(optimizer, *a, **k):
        step(optimizer, *a, **k)
        weights.update((n, p.detach().clone()) for n, p in runner.model.named_parameters())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", keep)
        with pytest.raises(NonFiniteLoss) as error:
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
    """The parts of a Runner that the hook looks at, around a real wrapper."""

    def __init__(self, wrapper, weight):
        self.optim_wrapper, self.iter = wrapper, 0
        self.model = torch.nn.ParameterDict({"weight": weight})


def scaled_run(max_skipped: int, accumulated: int = 1):
    """A parameter trained with float16's gradient scaler, which runs on the CPU for this."""
    weight = torch.nn.Parameter(torch.ones(1))
    wrapper = PortableAmpOptimWrapper(
        optimizer=torch.optim.SGD([weight], lr=0.1), accumulative_counts=accumulated
    )
    wrapper.loss_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run, hook = Run(wrapper, weight), FiniteLossHook(max_skipped)
    hook.before_train(run)
    return weight, run, hook


def go(weight, run, hook, values):
    for value in values:
        hook.before_train_iter(run, run.iter, {"data_samples": ()})
        run.optim_wrapper.update_params(weight.sum() * value)
        run.iter += 1


def test_steps_skipped_by_the_scaler_are_no_failure_until_too_many_in_a_row():
    weight, run, hook = scaled_run(max_skipped=3)
    nan = math.nan
    go(weight, run, hook, [1, nan, nan, nan, 1, nan, nan, nan])
    np.testing.assert_allclose(weight.item(), 1 - 2 * 0.1, rtol=1e-6)
    assert run.optim_wrapper.loss_scaler.get_scale() == 2.0 ** (10 - 6)
    with pytest.raises(NonFiniteLoss, match="skipped 4 steps in a row, up to iteration 9"):
        go(weight, run, hook, [nan])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_finite_loss_with_such_a_gradient_stops_too(value):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    run, hook = Run(OptimWrapper(optimizer=optimizer), weight), FiniteLossHook()
    hook.before_train(run)
    go(weight, run, hook, [1])
    weight.register_hook(lambda gradient: gradient * value)
    with pytest.raises(NonFiniteLoss, match="gradient of weight is not finite at iteration 2;"):
        go(weight, run, hook, [1])
    assert weight.item() == pytest.approx(0.9)


def test_every_batch_of_an_accumulation_is_looked_at():
    weight = torch.nn.Parameter(torch.ones(1))
    wrapper = PortableAmpOptimWrapper(
        optimizer=torch.optim.SGD([weight], lr=0.1), accumulative_counts=3, dtype="bfloat16"
    )
    run, hook = Run(wrapper, weight), FiniteLossHook()
    hook.before_train(run)
    go(weight, run, hook, [1, 1, 1, 1, math.inf])
    after = weight.item()
    with pytest.raises(NonFiniteLoss, match="inf at iteration 5;"):
        go(weight, run, hook, [1])
    assert weight.item() == after


def test_arguments():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="float64"):
        PortableAmpOptimWrapper(optimizer=optimizer, dtype="float64")
    with pytest.raises(ValueError, match="loss_scale must be 'dynamic'"):
        PortableAmpOptimWrapper(optimizer=optimizer, loss_scale="512")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="float16"):
            PortableAmpOptimWrapper(optimizer=optimizer, dtype="float16")
        assert not PortableAmpOptimWrapper(optimizer=optimizer).loss_scaler.is_enabled()


def test_batches_without_a_label_are_a_warning(tmp_path):
    """All pixels are ignored: loss 0 and accuracy 100, which nothing else tells."""
    config = write_config(tmp_path, UNVALIDATED)
    for path in (tmp_path / "data" / "labels").iterdir():
        Image.fromarray(np.full((SIZE, SIZE), 255, np.uint8)).save(path)
    runner = runner_of(train_parser().parse_args([str(config), "--work-dir", str(tmp_path / "w")]))
    runner.train()
    text = "".join(path.read_text() for path in Path(runner.log_dir).glob("*.log"))
    assert text.count("the loss of the first 3 iterations is exactly 0") == 1
