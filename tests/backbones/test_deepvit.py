"""DeepViT against the published classifier, its parameter counts, and other input sizes."""

import copy

import pytest
import torch
from mmseg.models.backbones import VisionTransformer
from torch import nn

from mmseg_ext.backbones import DeepViT

# Which resize runs is not visible in the features.
from mmseg_ext.backbones.token_backbone import positions_at
from tests.backbones.base import BackboneTester
from tests.models import OnGPU, Operators, assert_same, randomise

SMALL = {"embed_dims": 24, "depth": 4, "num_heads": 3}


class TestDeepViT(BackboneTester):
    config = {"type": "DeepViT", "arch": SMALL, "img_size": 64}
    channels = (24, 24, 24, 24)
    strides = (16, 16, 16, 16)
    deeper = {"arch": {**SMALL, "depth": 5}}
    traced = {"out_indices": (0,)}
    # Batch norm takes out again what the bias of the head mixing adds.
    zero_gradient = (r"reatten_matrix\.bias",)


class TestDeepViTConvolutional(TestDeepViT):
    """The form of 's': convolutional embedding, re-attention at the end, doubled branches."""

    arch = {**SMALL, "conv_patch_embed": True, "re_attention_blocks": 2}
    arch |= {"transform_scale": True, "scale_adjustment": 0.5}
    config = {"type": "DeepViT", "arch": arch, "img_size": 64}
    deeper = {"arch": {**arch, "depth": 5}}
    traced = {"arch": {**arch, "re_attention_blocks": 4}, "out_indices": (0,)}
    # The form above has the same blocks.
    test_compiles_once_for_all_sizes = test_weights_of_another_depth_or_shape = None


def test_stochastic_depth_of_a_gpu_drops_the_same_branches():
    """All branches draw their numbers together there."""
    arch = TestDeepViTConvolutional.arch
    model = DeepViT(arch=arch, img_size=64, drop_path_rate=0.6, out_indices=(1, 3)).train()
    images, found = torch.randn(6, 3, 64, 64), []
    for x in (images, images.as_subclass(OnGPU)):
        torch.manual_seed(3)
        x = x.clone().requires_grad_()
        maps = [y.as_subclass(torch.Tensor) for y in copy.deepcopy(model)(x)]
        loss = sum(y.square().sum() for y in maps)
        found.append([*maps, *torch.autograd.grad(loss, x)])
    assert_same(*found, rtol=1e-5)


@pytest.mark.parametrize(("frozen", "draws"), [(-1, 1), (2, 4)])
def test_frozen_blocks_drop_no_branches(frozen, draws):
    """With frozen blocks, each branch of the others draws its own numbers."""
    model = DeepViT(arch=SMALL, img_size=64, drop_path_rate=0.6, frozen_stages=frozen).train()
    with Operators() as operators:
        model(torch.zeros(2, 3, 64, 64).as_subclass(OnGPU))
    assert operators.names["rand"] == draws


def test_pads_to_a_multiple_of_the_patch():
    model = randomise(DeepViT(arch=SMALL, img_size=64)).eval()
    images = torch.randn(1, 3, 50, 61)
    padded = nn.functional.pad(images, (0, 3, 0, 14))
    assert_same(model(images), model(padded), rtol=0)


def test_interpolated_positions():
    """As mmsegmentation's vision transformer resizes them; on their own grid they are untouched.

    On CUDA the gradient of PyTorch's bicubic resize, which we do not use, is not deterministic.
    """
    model = DeepViT(arch=SMALL, img_size=128)
    assert positions_at(model.pos_embed, model.grid, (8, 8)) is model.pos_embed
    for table, tolerance in ((model.pos_embed, 1e-6), (model.pos_embed.double(), 1e-14)):
        expected = VisionTransformer.resize_pos_embed(table, (5, 12), (8, 8), "bicubic")
        assert_same(positions_at(table, model.grid, (5, 12)), expected, rtol=tolerance)
    nodes = [positions_at(model.pos_embed, model.grid, (5, 12)).grad_fn]
    for node in nodes:
        nodes.extend(n for n, _ in node.next_functions if n is not None)
        assert "Upsample" not in node.name()


def test_bad_arguments():
    with pytest.raises(ValueError, match="re_attention_blocks=5"):
        DeepViT(arch=SMALL | {"re_attention_blocks": 5})
    with pytest.raises(ValueError, match=r"img_size.*100"):
        DeepViT(arch=SMALL, img_size=100)
