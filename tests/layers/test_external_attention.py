"""ExternalAttention2d against its fixture, the paper's equations, and its faster forms."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from benchmarks.reference.external_attention import PlainExternalAttention2d
from mmseg_ext import fuse_model
from mmseg_ext.cost.multiply_adds import count_multiply_adds
from mmseg_ext.layers import ExternalAttention2d
from tests.parity import gradient_difference


def away_from_kink(output):
    """Random weights of a loss, zero where rounding alone could switch a ReLU on or off."""
    return torch.randn_like(output) * (output.detach().abs() > 1e-5)


def trained_like(channels=48, memory_size=8, **kwargs) -> ExternalAttention2d:
    """A block whose norm and biases are not at their trivial initial values."""
    block = ExternalAttention2d(channels, memory_size, **kwargs)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in block.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    norm = block.conv2[1]
    if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
        norm.running_mean.normal_(0, 0.1, generator=generator)
        norm.running_var.uniform_(0.5, 1.5, generator=generator)
    return block


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(4, channels)


def batch_norm_without_statistics(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def plain_batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, affine=False)


class ShiftedBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) + 0.5


VARIANTS = [
    {},
    {"normalization": "softmax"},
    {"tied": True},
    {"norm_layer": group_norm},
    {"norm_layer": batch_norm_without_statistics},
    {"norm_layer": plain_batch_norm},
    {"norm_layer": ShiftedBatchNorm},
    {"norm_layer": nn.SyncBatchNorm},
]


def variant_name(variant: dict) -> str:
    return ", ".join(getattr(v, "__name__", f"{k}={v}") for k, v in variant.items()) or "default"


def test_parameter_count():
    assert sum(p.numel() for p in ExternalAttention2d(512).parameters()) == 591_360
    tied = sum(p.numel() for p in ExternalAttention2d(512, tied=True).parameters())
    assert tied == 591_360 - 64 * 512  # the 558,592 of the paper's count


@pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
@pytest.mark.parametrize("size", [(9, 11), (2, 2)], ids=["composed", "published order"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_equals_the_equations(variant, size, training):
    if training and variant.get("norm_layer") is nn.SyncBatchNorm:
        pytest.skip("torch's SyncBatchNorm trains on GPUs only")
    block = trained_like(**variant).train(training).double()
    plain = PlainExternalAttention2d(copy.deepcopy(block)).train(training)
    x = torch.randn(2, 48, *size, dtype=torch.float64)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [model(i) for model, i in zip((block, plain), inputs, strict=True)]
    assert (outputs[0] - outputs[1]).abs().max() <= 1e-12 * outputs[1].abs().max()
    weights = away_from_kink(outputs[1])
    for output in outputs:
        (output * weights).sum().backward()
    assert gradient_difference(block, plain.layer) <= 1e-12
    difference = (inputs[0].grad - inputs[1].grad).abs().max()
    assert difference <= 1e-12 * inputs[1].grad.abs().max()
    for ours, theirs in zip(block.buffers(), plain.layer.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS, ids=variant_name)
def test_fused_equals_eval(variant):
    block = trained_like(**variant).eval()
    fused = fuse_model(nn.Sequential(block))
    assert block.conv2[0].weight.requires_grad  # the original is untouched
    for size in ((9, 11), (2, 2)):
        x = torch.randn(2, 48, *size)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        expected, output = block(inputs[0]), fused(inputs[1])
        assert (output - expected).abs().max() <= 1e-5 * expected.abs().max()
        weights = away_from_kink(expected)
        for result in (expected, output):
            (result * weights).sum().backward()
        gradients = [tensor.grad for tensor in inputs]
        largest = gradients[0].abs().max()
        assert largest > 0
        assert (gradients[1] - gradients[0]).abs().max() <= 1e-5 * largest


def with_hook(block: ExternalAttention2d) -> None:
    block.conv1.register_forward_hook(lambda module, args, output: 2 * output)


def with_parametrization(block: ExternalAttention2d) -> None:
    parametrizations.spectral_norm(block.linear_0)


def with_hook_on_the_norm(block: ExternalAttention2d) -> None:
    block.conv2[1].register_forward_hook(lambda module, args, output: 2 * output)


class LowRank(nn.Conv2d):
    """A 1x1 convolution with a product of two thin ones beside it, as LoRA has."""

    def __init__(self, channels: int):
        super().__init__(channels, channels, 1)
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


def with_low_rank(block: ExternalAttention2d) -> None:
    block.conv1 = LowRank(48)


ADDITIONS = [with_hook, with_parametrization, with_hook_on_the_norm, with_low_rank]


@pytest.mark.parametrize("add", ADDITIONS)
def test_attached_hooks_and_adapters_run(add):
    """In training and inference, eager, compiled, copied and fused, after calls without it."""
    block = trained_like().eval()
    x = torch.randn(1, 48, 9, 11)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    without = block(x)
    compiled(x)
    add(block)
    block.eval()
    with torch.no_grad():
        expected = block.published_order(x)
        assert (expected - without).abs().max() > 1e-3 * without.abs().max()
        torch._dynamo.reset()  # torch takes a module's hooks for those of its first call
        fused = block.fuse()
        for form in (block, copy.deepcopy(block), fused, fuse_model(block), compiled):
            torch.testing.assert_close(form(x), expected, rtol=1e-4, atol=1e-5)
    assert fused is not block and not fused.training
    block.train()
    twin = copy.deepcopy(block)
    torch.testing.assert_close(block(x), twin.published_order(x), rtol=1e-4, atol=1e-5)


def test_synchronized_statistics_are_the_groups(monkeypatch):
    """In training the norm is called, which knows the other processes; here one with other maps."""
    others = 3 * torch.randn(2, 48, 9, 11)

    def forward(self, y):
        together = torch.cat([y, others])
        return nn.functional.batch_norm(together, None, None, self.weight, self.bias, True)[
            : len(y)
        ]

    monkeypatch.setattr(nn.SyncBatchNorm, "forward", forward)
    block = trained_like(norm_layer=nn.SyncBatchNorm).train()
    x = torch.randn(2, 48, 9, 11)
    torch.testing.assert_close(block(x), block.published_order(x), rtol=1e-4, atol=1e-5)


def test_initialization_is_the_published_one():
    block = ExternalAttention2d(512)
    assert torch.equal(block.linear_0.weight, block.linear_1.weight.transpose(0, 1))
    assert block.linear_0.weight.data_ptr() != block.linear_1.weight.data_ptr()
    expected = (2 / 512) ** 0.5
    for weight in (block.conv1.weight, block.conv2[0].weight, block.linear_0.weight):
        assert abs(weight.std().item() / expected - 1) < 0.03
        assert abs(weight.mean().item()) < 0.02 * expected
    assert block.conv1.bias.abs().max().item() <= 512**-0.5


def test_channels_last_is_kept():
    block = trained_like().eval()
    x = torch.randn(2, 48, 9, 11)
    with torch.no_grad():
        out = block(x.to(memory_format=torch.channels_last))
        assert out.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(out, block(x), rtol=1e-5, atol=1e-5)


def test_autocast_keeps_composed_weights_and_probabilities_in_float32():
    block = trained_like()
    x = torch.randn(2, 48, 9, 11)
    expected = block(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = block(x)
        attention = block.attention_map(x)
    assert out.dtype == torch.bfloat16 and attention.dtype == torch.float32
    error = (out.float() - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    assert error < 0.01
    out.float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in block.parameters())


def test_multiply_adds_of_composed_form():
    with torch.device("meta"):
        block = ExternalAttention2d(512).eval()
        x = torch.empty(1, 512, 128, 128)
        composed = count_multiply_adds(block, x).all
        plain = count_multiply_adds(PlainExternalAttention2d(block).eval(), x).all
        fused = count_multiply_adds(block.fuse(), x).all
    assert plain == 9_663_676_416
    assert fused == 2 * 64 * 512 * 128 * 128  # 1.07 G
    assert composed == fused + 2 * 64 * 512 * 512  # and the two compositions


def test_bad_arguments():
    with pytest.raises(ValueError, match="'l2'"):
        ExternalAttention2d(8, normalization="l2")
