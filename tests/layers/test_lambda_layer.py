"""The lambda layer against published implementations, its equations and the paper's identities."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.reference import lambda_layer as plain_lambda
from mmseg_ext.layers import LambdaLayer
from mmseg_ext.layers.lambda_layer import apply_by_channels, apply_by_positions
from tests.models import Operators, randomise
from tests.parity import assert_same_function


def small(**changes) -> LambdaLayer:
    arguments = {"in_channels": 12, "key_depth": 4, "num_heads": 2, "receptive_field": 5}
    return LambdaLayer(**{**arguments, **changes})


@pytest.mark.parametrize("size", [(7, 9), (3, 12), (1, 1)])
@pytest.mark.parametrize("scope", ["local", "global"])
def test_equations(size, scope):
    """The global form up to its resolution, against embeddings gathered for pairs of positions."""
    arguments, way = {"position_bias": True}, plain_lambda.conv3d
    if scope == "global":
        arguments, way = {"receptive_field": None, "resolution": (7, 12)}, plain_lambda.table
    layer = randomise(small(intra_depth=2, **arguments)).double().eval()
    if scope == "global":
        for larger in ((8, 12), (7, 13)):
            with pytest.raises(ValueError, match=rf"size \({larger[0]}, {larger[1]}\) .*\(7, 12\)"):
                layer(torch.randn(1, 12, *larger).double())
    x = torch.randn(2, 12, *size).double()
    expected = plain_lambda.PlainLambdaLayer(layer, way)(x)
    assert torch.allclose(layer(x), expected, rtol=0, atol=1e-12)


def spread_conv3d(values: torch.Tensor, weight: torch.Tensor, dilation: int) -> torch.Tensor:
    """Compute `conv3d` with zeros between the taps of a window."""
    size = [dilation * (taps - 1) + 1 for taps in weight.shape[2:]]
    spread = weight.new_zeros(*weight.shape[:2], *size)
    spread[:, :, ::dilation, ::dilation] = weight
    return plain_lambda.conv3d(values, spread)


@pytest.mark.slow
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("form", ["forward", "published_order"])
def test_both_forms_give_the_same_results_and_gradients(form, dilation):
    """Neither the map nor the window, cut to the offsets in it, is square."""
    layer = randomise(small(key_depth=16, intra_depth=2, receptive_field=23, dilation=dilation))
    way = partial(spread_conv3d, dilation=dilation)
    x = torch.randn(2, 12, 7, 70, dtype=torch.float64)
    compute = getattr(layer.double().train(), form)
    with Operators() as operators:
        assert_same_function(
            layer, partial(plain_lambda.PlainLambdaLayer, way=way), x, 1e-12, compute
        )
    # The transform runs in chunks of key channels.
    assert (operators.names["_fft_c2r"] > 1) == (form == "forward")


@pytest.mark.parametrize(
    ("side", "taps", "training", "faster"),
    [(32, 63, False, True), (64, 23, True, True), (7, 13, True, False), (64, 23, False, False)],
)
def test_large_windows_on_large_maps_take_the_transform_on_a_cpu(side, taps, training, faster):
    layer, x = small(receptive_field=taps), torch.randn(2, 12, side, side)
    for device in ("cpu", "meta"):
        with torch.set_grad_enabled(training), Operators() as operators:
            layer.to(device)(x.to(device))
        assert ("_fft_r2c" in operators.names) == (faster and device == "cpu")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("changes", [{"intra_depth": 2}, {"stride": 2, "position_bias": True}])
def test_products_of_a_gpu_give_the_same_results_and_gradients(changes, channels_last):
    on_gpu = type("OnGPU", (torch.Tensor,), {"device": torch.device("cuda")})
    layer = randomise(small(**changes)).double().train()
    x = torch.randn(2, 12, 7, 9, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)

    def on_simulated_gpu(images: torch.Tensor) -> torch.Tensor:
        return layer(images.as_subclass(on_gpu)).as_subclass(torch.Tensor)

    assert_same_function(layer, lambda on_cpu: on_cpu, x, 1e-12, on_simulated_gpu)
    assert on_simulated_gpu(x).stride() == layer(x).stride()


@pytest.mark.parametrize("form", [apply_by_channels, apply_by_positions])
def test_derivatives_of_applied_lambdas(form):
    """First and second derivatives, against differences."""
    shapes = ((2, 2, 4, 3, 2), (2, 4, 3, 3, 2), (2, 4, 3))  # queries, position lambdas, shared
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def apply(queries, lambdas, shared):
        return form(queries, [lambdas], shared)

    assert torch.autograd.gradcheck(apply, leaves)
    assert torch.autograd.gradgradcheck(apply, leaves)


def test_gradients_do_not_fill_maps_with_zeros():
    """An index in a loop would, once for each key channel."""
    layer, x = small(receptive_field=21, intra_depth=2), torch.randn(2, 12, 45, 46)
    for compute in (layer, layer.published_order):
        with Operators() as operators:
            compute(x).sum().backward()
        assert "select_backward" not in operators.names


def test_operators_of_a_training_step_on_a_gpu():
    with Operators() as operators, torch.device("meta"):
        layer = LambdaLayer(64)
        x = torch.randn(2, 64, 32, 32, requires_grad=True)
        before = operators.kernels
        y = layer(x)
        y.backward(torch.ones_like(y))
    assert operators.kernels - before <= 47  # 36 in torch 2.13


@pytest.mark.parametrize("pool,window", [("avg3", 3), ("avg2", 2)])
@pytest.mark.parametrize("size", [(6, 8), (7, 9)])
def test_stride_averages_and_rounds_up(pool, window, size):
    strided = randomise(small(stride=2, pool=pool)).eval()
    plain = small().eval()
    plain.load_state_dict(strided.state_dict())
    x = torch.randn(1, 12, *size)
    full, y = plain(x), strided(x)
    assert y.shape[2:] == (-(-size[0] // 2), -(-size[1] // 2))
    first = 1 if pool == "avg3" else 0  # the window of output (1, 1) starts at input 2 - padding
    expected = full[:, :, 2 - first : 2 - first + window, 2 - first : 2 - first + window]
    assert torch.allclose(y[:, :, 1, 1], expected.mean(dim=(2, 3)), atol=1e-6)


def test_shared_embeddings_belong_to_one_layer():
    owner = small()
    borrower = small(embeddings=owner.position)
    both = nn.ModuleList([owner, borrower])
    assert [k for k in both.state_dict() if "position" in k] == ["0.position.weight"]
    twins = copy.deepcopy(both)
    assert twins[1].embeddings is twins[0].position is not owner.position
    before = owner.position.weight.clone()
    borrower.reset_parameters()
    assert torch.equal(owner.position.weight, before)


def test_initialization_of_the_paper():
    layer = LambdaLayer(400, key_depth=16, num_heads=8, position_bias=True)
    queries, rest = layer.qkv.weight.split([128, layer.qkv.out_channels - 128])
    assert queries.std().item() == pytest.approx((400 * 16) ** -0.5, rel=0.03)
    assert rest.std().item() == pytest.approx(400**-0.5, rel=0.03)
    assert layer.position.weight.std().item() == pytest.approx(16**-0.5, rel=0.03)
    assert not layer.position.bias.any()
