"""Our modules with the weights of parity fixtures, ready to run.

`LAYERS` need torch alone; `MODELS` are backbones and need the mm stack.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmseg_ext.doctor.fixtures import Fixture
from mmseg_ext.layers import (
    ExternalAttention2d,
    LambdaLayer,
    ManhattanAttention,
    MultiHeadExternalAttention,
    ReAttention,
)


class Case(NamedTuple):
    """A module in evaluation mode, its input, and its published output, a tensor or several."""

    module: nn.Module
    x: Tensor
    outputs: list[Tensor]


def _case(fixture: Fixture, module: nn.Module, weights: dict[str, Tensor]) -> Case:
    module.load_state_dict(weights)
    (x,), outputs = fixture.inputs.values(), fixture.outputs
    published = [outputs["logits"]] if "logits" in outputs else list(outputs.values())
    return Case(module.eval(), x, published)


def external_attention() -> Case:
    """MenghaoGuo/EANet, `External_attention`: maps of 512 channels, 64 slots."""
    fixture = Fixture("eanet_external_attention")
    return _case(fixture, ExternalAttention2d(512), fixture.state_dict)


def multi_head_external_attention() -> Case:
    """MenghaoGuo/EANet, `multi_head_attention_torch.py`, tokens of width 384."""
    fixture = Fixture("eamlp_multi_head_external_attention_384")
    block = MultiHeadExternalAttention(fixture.meta["dim"], fixture.meta["num_heads"])
    return _case(fixture, block, fixture.state_dict)


def manhattan_attention(decomposed: bool) -> Case:
    """qhfan/RMT, `VisionRetentionChunk` (decomposed) or `VisionRetentionAll`."""
    fixture = Fixture("masa_decomposed" if decomposed else "masa_full")
    names = ("dim", "num_heads", "decay_start", "decay_range")
    layer = ManhattanAttention(*(fixture.meta[n] for n in names), decomposed=decomposed)
    weights = {k.replace("lepe.conv", "lce"): v for k, v in fixture.state_dict.items()}
    return _case(fixture, layer, weights)


def lambda_layer() -> Case:
    """lucidrains/lambda-networks, `LambdaLayer` with a receptive field and intra-depth 4."""
    fixture = Fixture("lambda_local_u4")
    meta, theirs = fixture.meta, fixture.state_dict
    weights = {
        "qkv.weight": torch.cat([theirs[f"to_{part}.weight"] for part in "qkv"]),
        "position.weight": theirs["pos_conv.weight"].squeeze(2),
        "position.bias": theirs["pos_conv.bias"],
        **{key: value for key, value in theirs.items() if key.startswith("norm_")},
    }
    sizes = (meta[name] for name in ("dim", "dim_out", "dim_k", "heads", "dim_u"))
    layer = LambdaLayer(*sizes, receptive_field=meta["r"], position_bias=True)
    return _case(fixture, layer, weights)


def re_attention() -> Case:
    """zhoudaquan/dvit_repo, `ReAttention`, 12 heads on tokens of width 384."""
    fixture = Fixture("deepvit_re_attention")
    module = ReAttention(384, 12, transform_scale=fixture.meta["transform_scale"])
    return _case(fixture, module, fixture.state_dict)


LAYERS: dict[str, Callable[[], Case]] = {
    "external attention": external_attention,
    "multi-head external attention": multi_head_external_attention,
    "Manhattan attention, decomposed": lambda: manhattan_attention(True),
    "Manhattan attention, full": lambda: manhattan_attention(False),
    "lambda layer": lambda_layer,
    "re-attention": re_attention,
}


def backbone(kind: str, family: str, name: str, classes: int | None = 1000, **arguments) -> Case:
    """The published backbone of the fixture `name`: a classifier, or the maps of its stages."""
    from mmseg_ext import backbones
    from mmseg_ext.checkpoint import convert_official

    fixture = Fixture(name)
    module = getattr(backbones, kind)(num_classes=classes, **arguments)
    weights = convert_official(family, fixture.state_dict, classifier=classes is not None)
    return _case(fixture, module, weights)


MODELS: dict[str, Callable[[], Case]] = {
    "RMT-tiny": lambda: backbone("RMT", "rmt", "rmt_tiny_features", classes=None, arch="tiny"),
    "EAMLP-14": lambda: backbone("EAMLP", "eamlp", "eamlp_14", arch="14"),
    "DeepViT-16b": lambda: backbone("DeepViT", "deepvit", "deepvit_re_attn_16b", arch="16b"),
    "LambdaResNet-50": lambda: backbone(
        "LambdaResNet", "lambda_resnet", "lambda_resnet50", position_bias=True
    ),
}
