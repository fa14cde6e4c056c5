"""The lambda layer against published implementations, its equations and the paper's identities."""

import copy

import pytest
import torch
from torch import nn

from benchmarks.reference import lambda_layer as plain_lambda
from mmseg_ext.layers import LambdaLayer
from mmseg_ext.layers._fourier_lambdas import fourier_lambdas, should_use
from mmseg_ext.layers.lambda_layer import direct_lambdas
from tests.models import assert_same, randomise, weighted_sum


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


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("ours", [direct_lambdas, fourier_lambdas])
def test_every_way_gives_the_same_lambdas_and_gradients(ours, dilation):
    """Dilation puts zeros between the taps of a window. Neither window nor map is square."""
    values = torch.randn(2, 2, 8, 26, 64, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, 2, 7, 3, dtype=torch.float64, requires_grad=True)
    spread = torch.zeros(8, 2, 6 * dilation + 1, 2 * dilation + 1).double()
    spread[:, :, ::dilation, ::dilation] = weight
    chunks = list(ours(values, weight, dilation))  # of key channels
    assert (len(chunks) > 1) == (ours is fourier_lambdas)
    results = torch.cat(chunks, dim=1), plain_lambda.conv3d(values, spread)
    assert_same(*results, rtol=1e-12)
    gradients = (torch.autograd.grad(weighted_sum(r), (values, weight)) for r in results)
    assert_same(*gradients, rtol=1e-12)


@pytest.mark.parametrize(
    ("side", "taps", "training", "faster"),
    [(32, 63, False, True), (64, 23, True, True), (7, 13, True, False), (64, 23, False, False)],
)
def test_large_windows_on_large_maps_take_the_transform_on_a_cpu(side, taps, training, faster):
    weight = torch.empty(4, 1, taps, taps, requires_grad=training)
    values = torch.empty(1, 1, 2, side, side)
    assert should_use(values, weight) == faster
    assert not should_use(values.to("meta"), weight.to("meta"))


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
