"""Our modules with the weights of each parity fixture, ready to run.

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
    """A module in evaluation mode, its input, and pairs (our tensor of its output, the stored)."""

    module: nn.Module
    x: Tensor
    compared: Callable[[object], list[tuple[Tensor, Tensor]]]


def _single(fixture: Fixture, module: nn.Module, name: str = "x", out: str = "y") -> Case:
    return Case(
        module.eval(), fixture.inputs[name], lambda result: [(result, fixture.outputs[out])]
    )


def external_attention() -> Case:
    """MenghaoGuo/EANet, `External_attention`: maps of 512 channels, 64 slots."""
    fixture = Fixture("eanet_external_attention")
    block = ExternalAttention2d(512)
    block.load_state_dict(fixture.state_dict)
    return _single(fixture, block)


def multi_head_external_attention() -> Case:
    """MenghaoGuo/EANet, `multi_head_attention_torch.py`, tokens of width 384."""
    fixture = Fixture("eamlp_multi_head_external_attention_384")
    block = MultiHeadExternalAttention(fixture.meta["dim"], fixture.meta["num_heads"])
    block.load_state_dict(fixture.state_dict)
    return _single(fixture, block)


def manhattan_attention(decomposed: bool) -> Case:
    """qhfan/RMT, `VisionRetentionChunk` (decomposed) or `VisionRetentionAll`."""
    fixture = Fixture("masa_decomposed" if decomposed else "masa_full")
    names = ("dim", "num_heads", "decay_start", "decay_range")
    layer = ManhattanAttention(*(fixture.meta[n] for n in names), decomposed=decomposed)
    layer.load_state_dict({k.replace("lepe.conv", "lce"): v for k, v in fixture.state_dict.items()})
    return _single(fixture, layer)


def lambda_layer(name: str) -> Case:
    """lucidrains/lambda-networks, `LambdaLayer`, of the fixture `name`."""
    fixture = Fixture(name)
    meta, theirs = fixture.meta, fixture.state_dict
    ours = {
        "qkv.weight": torch.cat([theirs[f"to_{part}.weight"] for part in "qkv"]),
        **{key: value for key, value in theirs.items() if key.startswith("norm_")},
    }
    if "pos_conv.weight" in theirs:
        ours["position.weight"] = theirs["pos_conv.weight"].squeeze(2)
        ours["position.bias"] = theirs["pos_conv.bias"]
    else:
        ours["position.weight"] = theirs["rel_pos_emb"].permute(2, 3, 0, 1)
    layer = LambdaLayer(
        meta["dim"],
        meta["dim_out"],
        meta["dim_k"],
        meta["heads"],
        meta["dim_u"],
        receptive_field=meta.get("r"),
        resolution=(meta["n"], meta["n"]) if "n" in meta else None,
        position_bias="pos_conv.bias" in theirs,
    )
    layer.load_state_dict(ours)
    return _single(fixture, layer)


def re_attention() -> Case:
    """zhoudaquan/dvit_repo, `ReAttention`, 12 heads on tokens of width 384."""
    fixture = Fixture("deepvit_re_attention")
    module = ReAttention(384, 12, transform_scale=fixture.meta["transform_scale"])
    module.load_state_dict(fixture.state_dict)
    return _single(fixture, module)


LAYERS: dict[str, Callable[[], Case]] = {
    "external attention": external_attention,
    "multi-head external attention": multi_head_external_attention,
    "Manhattan attention, decomposed": lambda: manhattan_attention(True),
    "Manhattan attention, full": lambda: manhattan_attention(False),
    "lambda layer, local, u = 1": lambda: lambda_layer("lambda_local_u1"),
    "lambda layer, local, u = 4": lambda: lambda_layer("lambda_local_u4"),
    "lambda layer, global": lambda: lambda_layer("lambda_global"),
    "re-attention": re_attention,
}


def _classifier(backbone: nn.Module, family: str, fixture: Fixture) -> Case:
    from mmseg_ext.checkpoint import convert_official

    backbone.load_state_dict(convert_official(family, fixture.state_dict, classifier=True))
    return _single(fixture, backbone, "img", "logits")


def rmt(arch: str) -> Case:
    """qhfan/RMT, segmentation backbone: the maps of four stages."""
    from mmseg_ext.backbones import RMT
    from mmseg_ext.checkpoint import convert_official

    fixture = Fixture(f"rmt_{arch}_features")
    model = RMT(arch).eval()
    model.load_state_dict(convert_official("rmt", fixture.state_dict))

    def compared(stages: object) -> list[tuple[Tensor, Tensor]]:
        return [(stage, fixture.outputs[f"stage{i}"]) for i, stage in enumerate(stages)]

    return Case(model, fixture.inputs["img"], compared)


def rmt_classifier() -> Case:
    """qhfan/RMT, classifier of 1,000 classes."""
    from mmseg_ext.backbones import RMT

    model = RMT("small", num_classes=1000)
    return _classifier(model, "rmt", Fixture("rmt_classifier_small"))


def eamlp() -> Case:
    """MenghaoGuo/EANet, EAMLP-14."""
    from mmseg_ext.backbones import EAMLP

    return _classifier(EAMLP(arch="14", num_classes=1000), "eamlp", Fixture("eamlp_14"))


def deepvit(arch: str, name: str) -> Case:
    """zhoudaquan/dvit_repo, the classifier of the fixture `name`."""
    from mmseg_ext.backbones import DeepViT

    fixture = Fixture(name)
    size = fixture.inputs["img"].shape[-1]
    return _classifier(DeepViT(arch=arch, img_size=size, num_classes=1000), "deepvit", fixture)


def lambda_resnet(family: str, name: str, **arguments) -> Case:
    """d-li14/lambda.pytorch or timm, the classifier of the fixture `name`."""
    from mmseg_ext.backbones import LambdaResNet

    return _classifier(LambdaResNet(num_classes=1000, **arguments), family, Fixture(name))


MODELS: dict[str, Callable[[], Case]] = {
    "RMT-tiny": lambda: rmt("tiny"),
    "RMT-small": lambda: rmt("small"),
    "RMT-small, classifier": rmt_classifier,
    "EAMLP-14": eamlp,
    "DeepViT-16b": lambda: deepvit("16b", "deepvit_re_attn_16b"),
    "DeepViT-S": lambda: deepvit("s", "deepvit_s"),
    "DeepViT-L, 64x64": lambda: deepvit("l", "deepvit_l_64"),
    "LambdaResNet-50": lambda: lambda_resnet(
        "lambda_resnet", "lambda_resnet50", position_bias=True
    ),
    "LambdaResNet-26t (timm)": lambda: lambda_resnet(
        "timm_lambda_resnet", "timm_lambda_resnet26t", arch="timm_26t"
    ),
}
