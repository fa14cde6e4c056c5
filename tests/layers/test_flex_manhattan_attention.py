"""Manhattan attention by flex_attention: what it computes, and where it is chosen.

A GPU's kernels can't run here. Without a compiler flex_attention runs PyTorch's own reference of
them, whose backward differentiates our decay as the kernels' does.
"""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.reference.manhattan_attention import plain_manhattan_attention
from mmseg_ext.layers import ManhattanAttention
from mmseg_ext.layers import _flex_manhattan_attention as flex
from tests.parity import Fixture, assert_parity, gradient_difference

FORMS = [(decomposed, decay) for decomposed in (True, False) for decay in ("logit", "product")]
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture
def on_a_cpu(monkeypatch):
    """The layer takes flex_attention here, and PyTorch lets a CPU differentiate it."""
    monkeypatch.setattr(flex, "should_use", lambda *args: True)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *args: None)


@pytest.mark.parametrize(("decomposed", "decay"), FORMS)
@pytest.mark.parametrize(("height", "width", "spread"), [(5, 7, 4.0), (13, 11, 6.0)])
def test_equals_the_plain_formulation(decomposed, decay, height, width, spread, on_a_cpu):
    """Outputs and gradients, on lengths that are not multiples of a kernel's block of 128."""
    layer = ManhattanAttention(
        24, 3, decay_range=spread, decomposed=decomposed, decay=decay
    ).double()
    plain = copy.deepcopy(layer)
    x = torch.randn(2, height, width, 24, dtype=torch.float64, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    out, expected = layer(x), plain_manhattan_attention(plain, twin)
    assert torch.allclose(out, expected, rtol=1e-10, atol=1e-12)
    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.allclose(x.grad, twin.grad, rtol=1e-9, atol=1e-11)
    assert gradient_difference(layer, plain) <= 1e-9


@pytest.mark.parametrize("name", ["masa_decomposed", "masa_full"])
def test_parity(name, on_a_cpu):
    fixture = Fixture(name)
    meta = fixture.meta
    layer = ManhattanAttention(
        meta["dim"],
        meta["num_heads"],
        meta["decay_start"],
        meta["decay_range"],
        decomposed=name == "masa_decomposed",
    )
    layer.load_state_dict({k.replace("lepe.conv", "lce"): v for k, v in fixture.state_dict.items()})
    assert_parity(layer(fixture.inputs["x"]), fixture.outputs["y"])


@pytest.mark.parametrize(("decomposed", "decay"), FORMS)
def test_autocast(decomposed, decay, on_a_cpu):
    layer = ManhattanAttention(32, 2, decomposed=decomposed, decay=decay)
    x = torch.randn(2, 12, 11, 32)
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    assert (out.float() - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.parametrize("decay", ["logit", "product"])
def test_one_program_for_all_sizes(decay, monkeypatch):
    layer = ManhattanAttention(32, 2, decomposed=False, decay=decay, lce=False, rotary=False)
    maps = [torch.randn(1, h, w, 32) for h, w in ((5, 7), (6, 9), (12, 11), (9, 16))]
    with torch.no_grad():
        expected = [layer(x) for x in maps]
        monkeypatch.setattr(flex, "DEVICES", ("cpu",))
        layer.flex_from = 30
        counter = CompileCounterWithBackend("eager")
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend=counter, fullgraph=True)
        for x, y in zip(maps, expected, strict=True):
            assert torch.allclose(compiled(x), y, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2  # for the first size, then for any
    nodes = counter.graphs[-1].graph.nodes
    assert any("flex_attention" in str(node.target) for node in nodes)


def queries(device: str = "cuda", dtype: torch.dtype = torch.float32, positions=1024, dim=32):
    """What the choice looks at; there is no GPU to put a tensor on."""
    return SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(1, 8, positions, dim))


def test_a_gpu_takes_it_from_the_given_length():
    assert flex.should_use(queries(), 2, 1024) and flex.should_use(queries(), 1, 1024)
    assert not flex.should_use(queries(), 2, 1025)
    assert not flex.should_use(queries(), 2, math.inf)


def test_nothing_is_chosen_that_nobody_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (1, 0))
    assert not flex.should_use(queries(), 2, None)


def test_a_measured_length_is_for_its_family_precision_and_axes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setitem(flex.MEASURED, ("sm_90", "half", "map"), 1024)
    half = queries(dtype=torch.bfloat16)
    assert flex.should_use(half, 2, None)
    assert not flex.should_use(queries(dtype=torch.bfloat16, positions=1023), 2, None)
    assert not flex.should_use(queries(), 2, None)
    assert not flex.should_use(half, 1, None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not flex.should_use(half, 2, None)


@pytest.mark.parametrize(
    "other", [{"device": "cpu"}, {"dtype": torch.float64}, {"dim": 8}], ids=lambda o: next(iter(o))
)
def test_what_the_kernel_lacks_is_left_to_the_other_forms(other):
    assert not flex.should_use(queries(**other), 2, 1)


def test_tracers_counters_and_transforms_get_single_operators(monkeypatch):
    assert flex.should_use(queries(), 2, 1)
    with FlopCounterMode(display=False):
        assert not flex.should_use(queries(), 2, 1)
    chosen = torch.func.vmap(lambda x: x + flex.should_use(queries(), 2, 1))(torch.zeros(2))
    assert not chosen.any()
    monkeypatch.setattr(torch.jit, "is_tracing", lambda: True)
    assert not flex.should_use(queries(), 2, 1)


@pytest.mark.parametrize("least", [0, -1, math.nan])
def test_bad_argument(least):
    with pytest.raises(ValueError, match=rf"flex_from={least} must be positive, or None"):
        ManhattanAttention(24, 3, flex_from=least)
