"""Checks that the tests of heads and backbones share: gradients, autocast, export and others."""

import copy
import importlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from mmseg.registry import MODELS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

# ImageNet's statistics, as in the configs.
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
    """Return the models of `mmseg_ext.<package>` without a tester in `tests.<package>`."""

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


class Operators(TorchDispatchMode):
    """Operators by name, those with tensors on the CPU, and the largest result in bytes.

    `kernels` counts operators that are not views.
    """

    def __init__(self):
        super().__init__()
        self.names: Counter[str] = Counter()
        self.kernels = 0
        self.on_host: set[str] = set()
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        self.names[name] += 1
        self.kernels += not function.is_view
        if any(isinstance(t, Tensor) and t.device.type == "cpu" for t in (*args, result)):
            self.on_host.add(name)
        results = result if isinstance(result, (tuple, list)) else (result,)
        storages = [r.untyped_storage().nbytes() for r in results if isinstance(r, Tensor)]
        self.largest = max([self.largest, *storages])
        return result


class OnGPU(Tensor):
    """A tensor on a CPU, for which layers and backbones take the forms of a GPU."""

    is_cuda = True  # pyright: ignore


def tensors(output) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else list(output)


def weighted_sum(output) -> Tensor:
    """Return a scalar whose gradient has a different weight for every output element."""
    generator = torch.Generator().manual_seed(1)
    return sum(
        (t * torch.randn(t.shape, generator=generator)).sum()  # in float32 at least
        for t in tensors(output)
    )


def randomise(model: nn.Module) -> nn.Module:
    """Set batch norm statistics and zero-initialized parameters to random values."""
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


def relative_error(a: Tensor, b: Tensor) -> Tensor:
    """Return the root mean square of the difference, over that of `b`."""
    return (a.float() - b).pow(2).mean().sqrt() / b.pow(2).mean().sqrt()


def assert_autocast_close(model: nn.Module, forward, tolerance: float = 0.08) -> None:
    model.eval()
    with torch.no_grad():
        full = tensors(forward(model))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = tensors(forward(model))
    for a, b in zip(half, full, strict=True):
        assert relative_error(a, b) <= tolerance


def written_out_batch_norm(x, mean, variance, weight, bias, training, momentum, eps) -> Tensor:
    """Compute `F.batch_norm` in training by its formula, without updating the statistics."""
    assert training
    positions = [d for d in range(x.ndim) if d != 1]
    variance, mean = torch.var_mean(x, positions, correction=0, keepdim=True)
    shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
    return (x - mean) * (variance + eps).rsqrt() * weight.view(shape) + bias.view(shape)


def assert_compiles_once(
    model: nn.Module, inputs: Iterable[tuple], training: bool, backend: str = "eager"
) -> None:
    """Check that one full graph serves all sizes, with the eager outputs and gradients.

    Use two images: for one, torch guards on the size at which a convolution uses oneDNN.
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


class ModelTester:
    """The tests of heads and backbones; their base testers define `build` and `inputs`.

    `zero_gradient` has patterns of parameters whose gradient is zero by theory, `traced` arguments
    that leave out blocks, because tracing takes seconds for each. `autocast_tolerance` bounds the
    relative RMS error in bfloat16.
    """

    config: dict
    size: tuple[int, int]
    zero_gradient: tuple[str, ...] = ()
    traced: ClassVar[dict] = {}
    autocast_tolerance: float = 0.08

    def build(self, **changes) -> nn.Module:
        raise NotImplementedError

    def inputs(self, batch: int = 2, extra: tuple[int, int] = (0, 0)) -> Tensor | list[Tensor]:
        """Return what `forward` takes, for `size` plus `extra`."""
        raise NotImplementedError

    def check_gradients(self, model: nn.Module) -> None:
        """Check that every gradient is non-zero, or zero if `zero_gradient` has its name."""
        largest = max(p.grad.abs().max() for p in model.parameters() if p.grad is not None)
        for name, p in model.named_parameters():
            assert p.grad is not None, f"no gradient for {name}"
            if any(re.search(pattern, name) for pattern in self.zero_gradient):
                assert p.grad.abs().max() <= 1e-4 * largest, f"{name}: gradient is not zero"
            else:
                assert p.grad.abs().max() > 0, f"zero gradient for {name}"

    def test_gradients_for_one_image(self):
        """Compare with batch norm by its formula, in both memory formats.

        On a CPU, torch 2.13 computes wrong gradients of batch norm for one image if the strides of
        the input or gradient fit both memory formats.
        """
        model, inputs = randomise(self.build()).double().train(), self.inputs(1)
        for memory_format in (torch.contiguous_format, torch.channels_last):
            image, *others = (
                x.double().contiguous(memory_format=memory_format) for x in tensors(inputs)
            )
            image.requires_grad_()
            results = []
            for batch_norm in (F.batch_norm, written_out_batch_norm):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(F, "batch_norm", batch_norm)
                    torch.manual_seed(3)  # for dropout
                    loss = weighted_sum(
                        model([image, *others] if isinstance(inputs, list) else image)
                    )
                    results.append(torch.autograd.grad(loss, [image, *model.parameters()]))
            largest = max(g.abs().max() for g in results[1])
            for ours, expected in zip(*results, strict=True):
                assert (ours - expected).abs().max() <= 1e-10 * largest

    @torch.no_grad()
    def test_round_trips(self):
        """Deep copies keep the outputs, and a state dict gives them to a model without data."""
        model, x = randomise(self.build()).eval(), self.inputs(1)
        expected, twin = model(x), copy.deepcopy(model)
        assert_same(twin(x), expected, rtol=0)
        with torch.device("meta"):
            built = self.build().eval()
        for other, assign in ((twin.to_empty(device="cpu"), False), (built, True)):
            other.load_state_dict(copy.deepcopy(model.state_dict()), strict=True, assign=assign)
            assert_same(other(x), expected, rtol=0)

    def test_half_precision(self):
        """Under autocast and as a bfloat16 module: close to float32, and gradients are finite."""
        model, x = randomise(self.build()).eval(), self.inputs(1)
        assert_autocast_close(model, lambda m: m(x), self.autocast_tolerance)
        half = copy.deepcopy(model).bfloat16()
        outputs = tensors(half(tree_map(lambda t: t.bfloat16(), x)))
        for ours, theirs in zip(outputs, tensors(model(x)), strict=True):
            assert ours.dtype == torch.bfloat16
            assert relative_error(ours, theirs) <= self.autocast_tolerance
        sum(t.float().mean() for t in outputs).backward()
        assert all(torch.isfinite(p.grad).all() for p in half.parameters())

    def test_export(self):
        model, x = randomise(self.build(**self.traced)).eval(), self.inputs(1)
        with torch.no_grad():
            assert_same(torch.export.export(model, (x,)).module()(x), model(x))

    def test_compiles_once_for_all_sizes(self):
        inputs = [(self.inputs(2, extra),) for extra in ((0, 0), (5, 7))]
        assert_compiles_once(randomise(self.build(**self.traced)), inputs, training=True)
