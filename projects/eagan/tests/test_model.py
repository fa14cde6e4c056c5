"""The networks against the published code, and external attention."""

from pathlib import Path

import pytest
import torch

from projects.eagan.model import (
    CIFAR10,
    TINY_IMAGENET,
    Discriminator,
    ExternalAttentionBlock,
    Generator,
    SelfAttentionBlock,
    discriminator_loss,
    generator_loss,
)
from projects.eagan.recipes import SHAPES
from tests.parity import Fixture, assert_parity

DATA = Path(__file__).parent / "data"


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def load_in_order(module: torch.nn.Module, published: dict[str, torch.Tensor]) -> None:
    """Load by order: both have the same parts in the same order under other names."""
    names = list(module.state_dict())
    assert len(names) == len(published)
    module.load_state_dict(dict(zip(names, published.values(), strict=True)))


# What PyTorch-StudioGAN's networks of SAGAN hold: all parameters, buffers not counted.
@pytest.mark.parametrize(
    ("architecture", "generator", "discriminator"),
    [(CIFAR10, 4_386_308, 1_075_586), (TINY_IMAGENET, 13_387_396, 19_752_642)],
    ids=["cifar10", "tiny-imagenet"],
)
def test_parameters_of_networks(architecture, generator, discriminator):
    """External attention is as large as self-attention at 256 channels."""
    with torch.device("meta"):  # orthogonal weights of this size take seconds
        assert parameters(Generator(architecture, "self")) == generator
        assert parameters(Discriminator(architecture, "self")) == discriminator
        blocks = ExternalAttentionBlock(256), SelfAttentionBlock(256)
    assert {parameters(block) for block in blocks} == {81_921}


@pytest.mark.parametrize("kind", ["generator", "discriminator"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_parity_with_studiogan(kind, dtype):
    fixture = Fixture(f"sagan_cifar10_{kind}", DATA)
    network = (Generator if kind == "generator" else Discriminator)(CIFAR10, "self")
    load_in_order(network, fixture.state_dict)
    network.to(dtype).eval()
    (x,) = (value.to(dtype) for value in fixture.inputs.values())
    with torch.no_grad():
        result = network(x, torch.tensor(fixture.meta["label"]))
    assert_parity(result, fixture.outputs["result"])


@pytest.mark.parametrize("attention", ["external", "self"])
def test_every_parameter_gets_a_gradient(attention):
    torch.manual_seed(0)
    generator, discriminator = Generator(SHAPES, attention), Discriminator(SHAPES, attention)
    for network in (generator, discriminator):
        for name, parameter in network.named_parameters():
            if name.endswith("sigma"):  # at its start, zero, the attention is cut off
                torch.nn.init.ones_(parameter)
    labels = torch.arange(10)
    real = torch.randn(10, 3, 16, 16).tanh()
    fake = generator.sample(labels)
    discriminator_loss(discriminator(real, labels), discriminator(fake.detach(), labels)).backward()
    generator_loss(discriminator(fake, labels)).backward()
    small = {n for n, p in discriminator.named_parameters() if not p.grad.abs().sum() > 1e-4}
    assert not small
    # What a block's bias adds to all pixels of a channel, the batch norms behind it take away.
    small = {n for n, p in generator.named_parameters() if not p.grad.abs().sum() > 1e-4}
    assert {n for n in small if not (n.startswith("blocks.") and n.endswith(".bias"))} == set()


def test_attention_starts_as_the_identity_and_its_gain_moves_it():
    x = torch.randn(2, 32, 6, 6)
    for block in (ExternalAttentionBlock(32), SelfAttentionBlock(32)):
        assert torch.equal(block(x), x)
        torch.nn.init.ones_(block.sigma)
        assert (block(x) - x).abs().max() > 1e-3


def test_spectral_norm_holds_all_four_maps_of_external_attention():
    block = ExternalAttentionBlock(32)
    maps = (block.query, block.memories.mk, block.memories.mv, block.out)
    with torch.no_grad():
        for each in maps:
            each.parametrizations.weight.original.mul_(7)
            for _ in range(20):
                each.weight  # noqa: B018  a step of the power iteration
            assert torch.linalg.matrix_norm(each.weight.flatten(1), 2) == pytest.approx(1, rel=1e-3)
