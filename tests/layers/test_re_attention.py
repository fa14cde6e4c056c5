"""Re-attention against the published layer, its equations, and other numbers of tokens."""

import copy
from unittest import mock

import pytest
import torch
from torch import nn

from benchmarks.reference.re_attention import PlainReAttention
from mmseg_ext.layers import ReAttention, SelfAttention
from tests.models import Operators, assert_same, randomise
from tests.parity import assert_same_function

HEADS, WIDTH = 4, 24
# In training the layer computes more than 512 tokens in blocks of queries.
SHAPE = (2, 520, WIDTH)


def layer(**arguments) -> ReAttention:
    return randomise(ReAttention(WIDTH, HEADS, **arguments)).double()


def softmax_maps(module: ReAttention, x: torch.Tensor) -> torch.Tensor:
    q, k, _ = module.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    return (q @ k.mT * (WIDTH // HEADS) ** -0.5).softmax(-1)  # (B, H, N, N)


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("transform_scale", [False, True])
def test_equations(norm, training, transform_scale):
    module = layer(norm=norm, transform_scale=transform_scale, qkv_bias=norm == "batch")
    module.train(training)
    x = torch.randn(2, 10, WIDTH, dtype=torch.float64)
    # The paper's, on a copy: the running statistics of `module` stay.
    expected = PlainReAttention(copy.deepcopy(module), transform_scale)(x)
    assert_same(module(x), expected, rtol=1e-12)
    with torch.no_grad():
        assert_same(module(x), expected, rtol=1e-12)


def test_blocks_of_queries_change_nothing():
    """Results, gradients and running statistics, in training, and results in evaluation."""
    module = layer()
    # Maps far from 1/N: there the plain gradient of the mixing's bias, 0 in theory, rounds less.
    x = 4 * torch.randn(SHAPE, dtype=torch.float64)
    with Operators() as operators:
        copy.deepcopy(module)(x)
    assert operators.names["_softmax"] > 4  # several blocks, for the statistics and for the result
    assert_same_function(module, PlainReAttention, x, 1e-10)
    module.eval()
    with torch.no_grad():
        assert_same(module(x), PlainReAttention(module)(x), rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_are_those_of_batch_norm(momentum):
    """The mean 1/N and the heads' covariance give what batch norm finds on the mixed maps."""
    module = layer(reference_tokens=260).train()
    module.var_norm.momentum = momentum
    norm = copy.deepcopy(module.var_norm)
    for batch in (2, 0, 2):
        x = torch.randn((batch, *SHAPE[1:]), dtype=torch.float64)
        norm(module.reatten_matrix(softmax_maps(module, x) * 2))
        module(x)
    for name, value in norm.state_dict().items():
        torch.testing.assert_close(module.var_norm.state_dict()[name], value, rtol=1e-10, atol=0)


def test_dropped_entries_are_dropped_before_the_mixing():
    """With dropout the statistics are of the dropped maps, whose mean is not 1/N."""
    module = layer(attn_drop=0.5).train()
    x = torch.randn(2, 10, WIDTH, dtype=torch.float64)
    torch.manual_seed(5)
    y = module(x)
    torch.manual_seed(5)
    maps = nn.functional.dropout(softmax_maps(module, x), 0.5)
    maps = module.var_norm(module.reatten_matrix(maps))
    v = module.qkv(x)[..., 2 * WIDTH :].unflatten(-1, (HEADS, -1)).transpose(1, 2)
    assert_same(y, module.proj((maps @ v).transpose(1, 2).flatten(2)), rtol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_never_holds_the_maps_of_all_heads(training):
    """1025 tokens and 4 heads: the maps are 16 MiB, a block of them 4 MiB on a CPU."""
    module = ReAttention(WIDTH, HEADS).train(training)
    with torch.set_grad_enabled(training), Operators() as operators:
        y = module(torch.randn(1, 1025, WIDTH))
        if training:
            y.sum().backward()
    assert 4 * HEADS * 1025 < operators.largest <= 4 * 2**20


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("training", [False, True])
def test_repeated_tokens_change_nothing_with_reference_tokens(norm, training):
    """Ten tokens, each four times, give the results of the ten; without the reference they do not.

    What each token sees is the same image at twice the resolution.
    """
    x = torch.randn(2, 10, WIDTH, dtype=torch.float64)
    repeated = x.repeat_interleave(4, dim=1)
    module = layer(norm=norm, reference_tokens=10).train(training)
    expected = module(x).repeat_interleave(4, dim=1)
    assert_same(module(repeated), expected, rtol=1e-10)
    module.reference_tokens = None
    wrong = module(repeated)
    assert (wrong - expected).abs().max() > 0.5 * expected.abs().max()


def test_published_initialization():
    """A convolution's default, uniform within 1 / sqrt(heads); the community's, standard normal."""
    weights = torch.cat([ReAttention(64, 64).reatten_matrix.weight.flatten() for _ in range(4)])
    assert weights.abs().max() <= 1 / 8
    assert weights.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
    module = ReAttention(64, 64, norm="layer")
    assert module.reatten_matrix.bias is None
    assert module.reatten_matrix.weight.std().item() == pytest.approx(1, rel=0.05)


def test_products_in_parts_give_the_same_results_and_gradients():
    """As on a GPU, where each row of a map is a part of the sums over entries."""
    on_gpu = type("OnGPU", (torch.Tensor,), {"device": torch.device("cuda")})
    module = layer().train()

    def on_simulated_gpu(x: torch.Tensor) -> torch.Tensor:
        return module(x.as_subclass(on_gpu)).as_subclass(torch.Tensor)

    x = 4 * torch.randn(SHAPE, dtype=torch.float64)
    with Operators() as operators:
        assert_same_function(module, PlainReAttention, x, 1e-10, on_simulated_gpu)
    # One block, in the statistics and in the result; both are computed again.
    assert operators.names["_softmax"] == 5  # and one of the plain layer
    module.eval()
    with torch.no_grad():
        assert_same(on_simulated_gpu(x), module(x), rtol=1e-12)


def test_second_derivatives_in_blocks():
    """The gradient of a gradient's size, as the plain layer has it."""
    module = layer().train()
    module.var_norm.track_running_stats = False
    x = torch.randn(1, 513, WIDTH, dtype=torch.float64, requires_grad=True)
    seconds = []
    for compute in (module, PlainReAttention(copy.deepcopy(module))):
        (first,) = torch.autograd.grad(compute(x).square().sum(), x, create_graph=True)
        seconds += torch.autograd.grad(first.square().sum(), x)
    assert_same(*seconds, rtol=1e-9)


@pytest.mark.parametrize(("width", "padded"), [(33, 40), (32, 32)])
def test_self_attention_pads_heads_for_the_fused_kernels_of_gpus(width, padded):
    """DeepViT-S has heads of 33 channels, and float32 kernels need a multiple of 8."""
    on_gpu = type("OnGPU", (torch.Tensor,), {"device": torch.device("cuda")})
    layer, x = SelfAttention(3 * width, 3).eval(), torch.randn(2, 7, 3 * width)
    kernel = nn.functional.scaled_dot_product_attention
    with mock.patch.object(nn.functional, kernel.__name__, wraps=kernel) as attend:
        expected, ours = layer(x), layer(x.as_subclass(on_gpu))
    widths = [{heads.shape[-1] for heads in call.args} for call in attend.call_args_list]
    assert widths == [{width}, {padded}]
    assert_same(ours.as_subclass(torch.Tensor), expected)
