"""Learning rates that fall towards the input, against rates written down by hand."""

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmseg.registry import MODELS
from torch import nn

from mmseg_ext.backbones import EAMLP, RMT, DeepViT, LambdaResNet

RATE = 0.5
NARROW_RMT = {
    "embed_dims": (8, 8),
    "depths": (1, 2),
    "num_heads": (1, 1),
    "ffn_ratios": (1, 1),
    "decay_ranges": (2, 2),
    "layer_scales": (None, None),
    "decomposed": (True, False),
    "drop_path_rate": 0.0,
}


class Segmentor(nn.Module):
    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.decode_head = nn.Conv2d(8, 2, 1)


def scales(backbone: nn.Module, **paramwise) -> dict[str, float]:
    """The rate of each parameter by name, the optimizer's own being 1."""
    model = Segmentor(backbone)
    wrapper = build_optim_wrapper(
        model,
        {
            "constructor": "LayerDecayOptimWrapperConstructor",
            "optimizer": {"type": "AdamW", "lr": 1.0, "weight_decay": 0.5},
            "paramwise_cfg": {"layer_decay_rate": RATE, **paramwise},
        },
    )
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = wrapper.optimizer.param_groups
    listed = [parameter for group in groups for parameter in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {p for p in model.parameters() if p.requires_grad}
    keys = [(group["lr"], group["weight_decay"]) for group in groups]
    assert len(keys) == len(set(keys))
    return {names[p]: group["lr"] for group in groups for p in group["params"]}


def by_prefix(found: dict[str, float], prefix: str) -> set[float]:
    picked = {rate for name, rate in found.items() if name.startswith(prefix)}
    assert picked, prefix
    return picked


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        (
            RMT(NARROW_RMT, out_indices=(0, 1)),
            {
                "stem": 1 / 16,
                "stages.0.0": 1 / 8,
                "downsamples.0": 1 / 4,
                "stages.1.0": 1 / 4,
                "stages.1.1": 1 / 2,
                "out_norms": 1,
            },
        ),
        (
            DeepViT({"embed_dims": 8, "depth": 2, "num_heads": 2}, img_size=32),
            {
                "cls_token": 1 / 8,
                "pos_embed": 1 / 8,
                "patch_embed": 1 / 8,
                "blocks.0": 1 / 4,
                "blocks.1": 1 / 2,
                "norm": 1,
            },
        ),
        (
            EAMLP({"embed_dims": 8, "depth": 2, "num_heads": 2, "mlp_ratio": 1}, img_size=32),
            {
                "cls_token": 1 / 8,
                "tokens_to_token": 1 / 8,
                "blocks.0": 1 / 4,
                "blocks.1": 1 / 2,
                "norm": 1,
            },
        ),
        (
            LambdaResNet(depth=50),
            {
                "conv1": 2**-17,
                "bn1": 2**-17,
                "layer1.0": 2**-16,
                "layer2.0": 2**-13,
                "layer4.1": 2**-2,
                "layer4.2": 2**-1,
            },
        ),
    ],
    ids=["RMT", "DeepViT", "EAMLP", "LambdaResNet"],
)
def test_rate_of_each_depth(backbone, expected):
    found = scales(backbone)
    for prefix, rate in expected.items():
        assert by_prefix(found, f"backbone.{prefix}") == {rate}, prefix
    assert by_prefix(found, "decode_head.") == {1}


def test_it_goes_along_with_mmengines_keys():
    backbone = RMT(NARROW_RMT, out_indices=(0, 1))
    backbone.stem.requires_grad_(False)
    found = scales(
        backbone,
        norm_decay_mult=0.0,
        custom_keys={"decode_head": {"lr_mult": 10.0}, "stages.0": {"lr_mult": 3.0}},
    )
    assert by_prefix(found, "decode_head.") == {10}
    assert by_prefix(found, "backbone.stages.0.") == {3 / 8}
    assert not any(name.startswith("backbone.stem.") for name in found)


def test_shared_position_embeddings_are_taken_once():
    found = scales(LambdaResNet(depth=50, share_embeddings="stage"))
    assert by_prefix(found, "backbone.layer1.0.") == {2**-16}


@pytest.mark.parametrize("rate", [None, 0.0, 1.5])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match="layer_decay_rate must lie in"):
        scales(RMT(NARROW_RMT, out_indices=(1,)), layer_decay_rate=rate)


def test_a_backbone_without_depths_is_refused():
    with pytest.raises(ValueError, match="ResNet has no get_layer_depth"):
        scales(MODELS.build({"type": "ResNet", "depth": 18}))


def test_foreign_names_are_refused():
    with pytest.raises(ValueError, match=r"'neck\.w' is no parameter under 'backbone\.'"):
        RMT(NARROW_RMT, out_indices=(1,)).get_layer_depth("neck.w", "backbone.")


def test_training_moves_deep_layers_more_than_early_ones():
    torch.manual_seed(0)
    model = Segmentor(RMT(NARROW_RMT, out_indices=(1,)))
    wrapper = build_optim_wrapper(
        model,
        {
            "constructor": "LayerDecayOptimWrapperConstructor",
            "optimizer": {"type": "SGD", "lr": 1.0},
            "paramwise_cfg": {"layer_decay_rate": RATE},
        },
    )
    early, late = model.backbone.stages[0][0], model.backbone.stages[1][1]
    weights = [block.norm1.weight for block in (early, late)]
    before = [weight.detach().clone() for weight in weights]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    wrapper.step()
    moved = [(a - b).abs().mean().item() for a, b in zip(before, weights, strict=True)]
    assert moved == pytest.approx([1 / 8, 1 / 2])
