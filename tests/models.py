"""What the testers of heads and backbones share: gradients, round trips, autocast, export."""

import copy
import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from mmseg.registry import MODELS
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from mmseg_ext.layers.precision import full_precision

# ImageNet's statistics, as the configs' bases have them.
PREPROCESSOR = {
    "type": "SegDataPreProcessor",
    "mean": [123.675, 116.28, 103.53],
    "std": [58.395, 57.12, 57.375],
    "bgr_to_rgb": True,
}


# An RMT and a LambdaResNet whose step takes a fraction of a second.
NARROW_RMT = {
    "depths": (1, 1, 1, 1),
    "embed_dims": (8, 16, 24, 32),
    "num_heads": (1, 2, 2, 2),
    "ffn_ratios": (2, 2, 2, 2),
    "decay_ranges": (4, 4, 6, 6),
    "decomposed": (True, True, True, False),
    "layer_scales": (None, None, None, None),
    "drop_path_rate": 0.1,
}
NARROW_LAMBDA = {"depth": (1, 1, 1, 1), "placement": ((), (), (0,), (0,)), "receptive_field": 5}


def untested(package: str, tester: type) -> list[str]:
    """The models of `mmseg_ext.<package>` that no tester in `tests.<package>` has."""

    def subclasses(cls: type) -> set[type]:
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    for path in (Path(__file__).parent / package).glob("test_*.py"):
        importlib.import_module(f"tests.{package}.{path.stem}")
    tested = {cls.config["type"] for cls in subclasses(tester) if hasattr(cls, "config")}
    return sorted(
        name
        for name, item in MODELS.module_dict.items()
        if item.__module__.startswith(f"mmseg_ext.{package}") and name not in tested
    )


def tensors(output) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else list(output)


def weighted_sum(output) -> Tensor:
    """A scalar whose gradient reaches every output element with a different weight."""
    generator = torch.Generator().manual_seed(1)
    return sum(
        (t.to(full_precision(t.dtype)) * torch.randn(t.shape, generator=generator)).sum()
        for t in tensors(output)
    )


def randomise(model: nn.Module) -> nn.Module:
    """Batch-norm statistics and every zero-initialised parameter away from their trivial values."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            if not p.any():
                p.normal_(0, 0.1, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1, generator=generator)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5, generator=generator)
    return model


def assert_same(ours, theirs, rtol: float = 1e-5) -> None:
    for a, b in zip(tensors(ours), tensors(theirs), strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= rtol * b.abs().max()


def assert_every_parameter_gets_gradient(model: nn.Module, zero_by_theory: tuple[str, ...]) -> None:
    """After a backward: each parameter has a gradient, non-zero unless its name is excepted."""
    excepted = [re.compile(p) for p in zero_by_theory]
    largest = max(p.grad.abs().max() for p in model.parameters() if p.grad is not None)
    for name, p in model.named_parameters():
        assert p.grad is not None, f"no gradient for {name}"
        if any(pattern.search(name) for pattern in excepted):
            assert p.grad.abs().max() <= 1e-4 * largest, f"{name}: gradient is not zero"
        else:
            assert p.grad.abs().max() > 0, f"zero gradient for {name}"


def assert_round_trips(model: nn.Module, forward) -> None:
    """Saving and loading the state dict, and deep copies, keep the function."""
    model.eval()
    with torch.no_grad():
        before = forward(model)
        twin = copy.deepcopy(model)
        assert_same(forward(twin), before, rtol=0)
        for p in twin.parameters():
            p.zero_()
        twin.load_state_dict(copy.deepcopy(model.state_dict()), strict=True)
        assert_same(forward(twin), before, rtol=0)


def assert_autocast_close(model: nn.Module, forward, tolerance: float = 0.08) -> None:
    model.eval()
    with torch.no_grad():
        full = tensors(forward(model))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = tensors(forward(model))
    for a, b in zip(half, full, strict=True):
        assert torch.isfinite(a).all()
        error = (a.float() - b).pow(2).mean().sqrt() / b.pow(2).mean().sqrt()
        assert error <= tolerance, f"relative RMS error {error:.3g} under bfloat16 autocast"


def assert_half_precision_works(model: nn.Module, args: tuple, tolerance: float = 0.08) -> None:
    """A module wholly in bfloat16, forward and backward, near the one in float32."""
    model.eval()
    dtype = torch.bfloat16
    half = copy.deepcopy(model).to(dtype)
    with torch.no_grad():
        expected = tensors(model(*args))
    outputs = tensors(half(*tree_map(lambda t: t.to(dtype), args)))
    for ours, theirs in zip(outputs, expected, strict=True):
        assert ours.dtype == dtype
        error = (ours.float() - theirs).pow(2).mean().sqrt() / theirs.pow(2).mean().sqrt()
        assert error <= tolerance, f"relative RMS error {error:.3g} in {dtype}"
    sum(t.float().mean() for t in outputs).backward()
    assert all(torch.isfinite(p.grad).all() for p in half.parameters())


def written_out_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.batch_norm` by its formula; the running statistics are read and not moved."""
    positions = [d for d in range(x.ndim) if d != 1]
    if training or running_mean is None:
        mean, variance = x.mean(positions), x.var(positions, unbiased=False)
    else:
        mean, variance = running_mean, running_var
    scale = (variance + eps).rsqrt() * (1 if weight is None else weight)
    shift = (0 if bias is None else bias) - mean * scale
    shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
    return x * scale.view(shape) + shift.view(shape)


def assert_right_gradients_for_one_image(model: nn.Module, x: Tensor, forward) -> None:
    """Those with batch norm written out, in float64, of x (1, C, H, W) in either memory format.

    For one image torch 2.13 gives wrong gradients on a CPU where a batch norm meets input or
    gradients of strides that both memory formats could have.
    """
    model.double().train()
    for memory_format in (torch.contiguous_format, torch.channels_last):
        image = x.double().contiguous(memory_format=memory_format).requires_grad_()
        results = []
        for batch_norm in (F.batch_norm, written_out_batch_norm):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(F, "batch_norm", batch_norm)
                torch.manual_seed(3)  # for dropout
                loss = weighted_sum(forward(model, image))
                results.append(torch.autograd.grad(loss, [image, *model.parameters()]))
        largest = max(g.abs().max() for g in results[1])
        for ours, expected in zip(*results, strict=True):
            assert (ours - expected).abs().max() <= 1e-10 * largest


def assert_exports(model: nn.Module, args: tuple) -> None:
    """The program of `torch.export` gives the eager result."""
    model.eval()
    with torch.no_grad():
        assert_same(torch.export.export(model, args).module()(*args), model(*args))


def assert_compiles_once(
    model: nn.Module, inputs: Iterable[tuple], training: bool, backend: str = "eager"
) -> None:
    """One graph without a break serves all sizes; outputs and gradients are the eager ones.

    Of two images: for one, torch guards on the size at which a convolution takes oneDNN.
    """
    twin = copy.deepcopy(model.train(training))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    # With floats that may change, as by default, a second analysis of the same call drops them.
    options = torch._dynamo.config.patch(error_on_recompile=True, specialize_float=True)
    with options, torch.set_grad_enabled(training):
        for args in inputs:
            results = []
            for form in (compiled, twin):
                torch.manual_seed(3)  # for dropout
                results.append(tensors(form(*args)))
            assert_same(*results)
            if not training:
                continue
            ours, theirs = (
                torch.autograd.grad(weighted_sum(result), list(form.parameters()))
                for result, form in zip(results, (model, twin), strict=True)
            )
            largest = max(g.abs().max() for g in theirs)
            for a, b in zip(ours, theirs, strict=True):
                assert (a - b).abs().max() <= 1e-5 * largest
