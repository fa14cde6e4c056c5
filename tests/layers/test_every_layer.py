"""What every layer does: parity, precisions, hooks, export."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import mmseg_ext.layers
from mmseg_ext.doctor.fixtures import LAYERS as LAYER_FIXTURES
from mmseg_ext.layers import (
    ExternalAttention,
    ExternalAttention2d,
    LambdaLayer,
    ManhattanAttention,
    ManhattanBlock,
    MultiHeadExternalAttention,
    ReAttention,
    SelfAttention,
)
from tests.messages import raises_message
from tests.models import (
    assert_autocast_close,
    assert_compiles_once,
    assert_same,
    randomise,
    relative_error,
)
from tests.parity import assert_case_parity

MAP, LARGE, TOKENS, LAST = (2, 12, 5, 6), (2, 12, 45, 46), (2, 9, 12), (2, 5, 6, 12)
SMALL_LAMBDA = {"key_depth": 4, "num_heads": 2, "position_bias": True}
GLOBAL = {"receptive_field": None, "resolution": (8, 8)}

LAYERS = {
    "external 2d": (lambda: ExternalAttention2d(12, 4), MAP),
    "external": (lambda: ExternalAttention(12, 4), TOKENS),
    "multi-head external": (lambda: MultiHeadExternalAttention(12, 2, memory_size=4), TOKENS),
    "lambda": (lambda: LambdaLayer(12, receptive_field=5, **SMALL_LAMBDA), MAP),
    "strided lambda": (lambda: LambdaLayer(12, receptive_field=3, stride=2, **SMALL_LAMBDA), MAP),
    "Fourier lambda": (lambda: LambdaLayer(12, receptive_field=21, **SMALL_LAMBDA), LARGE),
    "global lambda": (lambda: LambdaLayer(12, intra_depth=2, **SMALL_LAMBDA, **GLOBAL), MAP),
    "manhattan": (lambda: ManhattanAttention(12, 2), LAST),
    "manhattan product": (lambda: ManhattanAttention(12, 2, decay="product"), LAST),
    "manhattan full": (lambda: ManhattanAttention(12, 2, decomposed=False), LAST),
    "full product": (lambda: ManhattanAttention(12, 2, decomposed=False, decay="product"), LAST),
    "manhattan block": (lambda: ManhattanBlock(12, 2, 2.0), LAST),
    "re-attention": (lambda: ReAttention(12, 3), TOKENS),
    "re-attention layer": (lambda: ReAttention(12, 3, norm="layer"), TOKENS),
    "self-attention": (lambda: SelfAttention(12, 3), TOKENS),
}
# An input in another order, and the hint of the message.
WRONG = {
    MAP: ((0, 2, 3, 1), "x.permute(0, 3, 1, 2)"),
    LAST: ((0, 3, 1, 2), "x.permute(0, 2, 3, 1)"),
    TOKENS: ((0, 2, 1), "x.transpose(1, 2)"),
}
BAD_ARGUMENTS = [
    (ExternalAttention2d, {"channels": 8, "normalization": "l2"}, "'l2'"),
    (MultiHeadExternalAttention, {"embed_dim": 30, "num_heads": 4}, "embed_dim=30 .* num_heads=4"),
    (LambdaLayer, {"in_channels": 12, "out_channels": 7}, "out_channels=7"),
    (LambdaLayer, {"in_channels": 12, "pool": "max"}, "pool .*'max'"),
    (LambdaLayer, {"in_channels": 12, "receptive_field": 8}, "receptive_field .*8"),
    (
        LambdaLayer,
        {"in_channels": 12, "receptive_field": None},
        "field=None .*resolution=None",
    ),
    (
        LambdaLayer,
        {"in_channels": 12, "resolution": (8, 8)},
        r"field=23 .*resolution=\(8, 8\)",
    ),
    (LambdaLayer, {"in_channels": 12, **GLOBAL, "dilation": 2}, "dilation .*2"),
    (ManhattanAttention, {"embed_dim": 24, "num_heads": 8}, "embed_dim=24, num_heads=8: .*3"),
    (ManhattanAttention, {"embed_dim": 24, "num_heads": 0}, "embed_dim=24 .* num_heads=0"),
    (ManhattanAttention, {"embed_dim": 24, "num_heads": 3, "decay": "sum"}, "decay .* 'sum'"),
    (ReAttention, {"embed_dim": 100, "num_heads": 12}, "embed_dim=100.*num_heads=12"),
    (ReAttention, {"embed_dim": 24, "num_heads": 4, "norm": "instance"}, "norm.*'instance'"),
]


@pytest.fixture(params=LAYERS)
def name(request) -> str:
    return request.param


def build(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, torch.Tensor]:
    layer, shape = LAYERS[name][0](), LAYERS[name][1]
    return randomise(layer).to(dtype).eval(), torch.randn(shape, dtype=dtype)


def test_no_layer_is_left_out():
    built = {type(build(name)[0]).__name__ for name in LAYERS}
    assert built == set(mmseg_ext.layers.__all__), "add a row to LAYERS"


@pytest.mark.parametrize("fixture", LAYER_FIXTURES)
def test_parity_with_published_code(fixture):
    assert_case_parity(fixture)


@pytest.mark.parametrize(("kind", "arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


def test_bad_input(name):
    layer, x = build(name)
    order, hint = next(w for shape, w in WRONG.items() if shape.index(12) == x.shape.index(12))
    with raises_message(ValueError, hint):
        layer(x.permute(order))
    with raises_message(ValueError, "(B", "(2, 3)", where="x "):
        layer(torch.randn(2, 3).double())


def test_half_precision_without_autocast(name):
    layer, x = build(name, torch.float16)
    exact = copy.deepcopy(layer).float()
    y = layer(x.requires_grad_())
    assert y.dtype == torch.float16
    assert relative_error(y, exact(x.detach().float())) < 0.01
    layer.train()(x).float().square().mean().backward()
    for tensor in (x, *layer.parameters()):
        assert torch.isfinite(tensor.grad).all()


def test_empty_batch(name):
    layer, x = build(name)
    y = layer.train()(x[:0])
    y.sum().backward()
    assert y.shape == (0, *layer.eval()(x).shape[1:])


def test_autocast(name):
    layer, x = build(name, torch.float32)
    assert_autocast_close(layer, lambda m: m(x), 0.02)


@torch.no_grad()
def test_memory_format_is_kept(name):
    layer, x = build(name)
    expected = layer(x)
    assert expected.is_contiguous()
    if x.ndim == 4 and x.shape[1] == 12:
        y = layer(x.contiguous(memory_format=torch.channels_last))
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert_same(y, expected, rtol=1e-12)


def bent(y: torch.Tensor) -> torch.Tensor:
    return y + y.abs() + y.square()


def replace_class(module: nn.Module) -> None:
    """As adapters like LoRA do."""
    kind = type(module)
    module.__class__ = type("Adapter", (kind,), {"forward": lambda m, x: kind.forward(m, bent(x))})


def replace_forward(module: nn.Module) -> None:
    module.forward = partial(lambda m, x: type(m).forward(m, bent(x)), module)


def parametrize(module: nn.Module) -> None:
    if module.weight.ndim > 1:
        parametrizations.spectral_norm(module)


ADDITIONS = {
    "hook": lambda module: module.register_forward_hook(lambda m, args, output: bent(output)),
    "hook before": lambda module: module.register_forward_pre_hook(lambda m, args: bent(args[0])),
    "class": replace_class,
    "forward": replace_forward,
    "parametrization": parametrize,
}


# These layers can compute with their submodules' weights; the others always call them.
BY_WEIGHTS = ("external 2d", "re-attention")
ATTACHED = [(n, add) for n in LAYERS for add in ADDITIONS if n in BY_WEIGHTS or add == "hook"]


@pytest.mark.parametrize(("name", "add"), ATTACHED)
def test_attached_hooks_and_adapters_run(name, add):
    """In every submodule; in training and inference, eager, compiled and copied."""
    layer, x = build(name)
    for part, module in layer.named_modules():
        weights = getattr(module, "weight", None)
        if not part or part == "position" or (add == "parametrization" and weights is None):
            continue
        changed = copy.deepcopy(layer)
        ADDITIONS[add](changed.get_submodule(part))
        twin = copy.deepcopy(changed)
        if hasattr(layer, "published_order"):
            assert_same(changed.train()(x), twin.train().published_order(x), rtol=1e-10)
        slow = getattr(twin.eval(), "published_order", twin)
        with torch.no_grad():
            expected, without = slow(x), layer(x)
            if add != "parametrization":
                assert (expected - without).abs().max() > 1e-4 * without.abs().max(), part
            forms = [changed.eval(), copy.deepcopy(changed)]
            if add == "hook" and name in BY_WEIGHTS:
                torch._dynamo.reset()  # torch takes a module's hooks for those of its first call
                forms.append(torch.compile(changed, backend="eager", fullgraph=True))
            for form in forms:
                assert_same(form(x), expected, rtol=1e-10)


@pytest.mark.slow
def test_export_with_gradients_enabled(name):
    layer, x = build(name, torch.float32)
    program = torch.export.export(copy.deepcopy(layer), (x,)).module()
    with torch.no_grad():
        assert_same(program(x), layer(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param("external 2d", "inductor", marks=pytest.mark.slow),
        ("lambda", "eager"),
        ("manhattan full", "eager"),
    ],
)
def test_one_compiled_program_for_all_sizes(name, backend):
    """Of more than 256 positions, which full Manhattan attention computes in slices otherwise."""
    layer, x = build(name, torch.float32)
    inputs = [(torch.cat([x] * count, 2),) for count in (9, 18)]
    assert_compiles_once(layer, inputs, False, backend)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_of_sharp_weights(tmp_path):
    """As trained ones are: most positions get next to nothing of a slot."""
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, x = build("external 2d", torch.float32)
    with torch.no_grad():
        for key, p in layer.named_parameters():
            if p.ndim > 1 and "linear_1" not in key:
                p.mul_(4)
    path = str(tmp_path / "layer.onnx")
    torch.onnx.export(layer, (x,), dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert_same(torch.from_numpy(y), layer(x), rtol=2e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace(name):
    layer, x = build(name, torch.float32)
    with torch.no_grad():
        traced = torch.jit.trace(layer, (x,), check_trace=False)
        assert_same(traced(x), layer(x))
