"""Published LambdaResNets, converted; the tests of the backbone compare their outputs."""

import re

import torch

from mmseg_ext.backbones.lambda_resnet import ARCHS, LambdaResNet
from mmseg_ext.checkpoint import convert_official
from tests.parity import Fixture


def timm_names(state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state dict of a lambda_resnet50ts with the names and axes of timm's byoanet.py."""
    renamed = {}
    for key, value in state_dict.items():
        block = key.rsplit(".conv", 1)[0].rsplit(".bn", 1)[0]
        attention = f"{block}.conv2.qkv.weight" in state_dict
        for pattern, name in (
            (r"stem\.[036]\.", lambda m: f"stem.conv{int(m[0][5]) // 3 + 1}.conv."),
            (r"stem\.[147]\.", lambda m: f"stem.conv{int(m[0][5]) // 3 + 1}.bn."),
            (r"conv2\.(qkv|norm_[qv])", r"self_attn.\1"),
            (r"conv2\.position", "self_attn.conv_lambda"),
            (r"bn2", "post_attn" if attention else "conv2_kxk.bn"),
            (r"conv2\.weight", "conv2_kxk.conv.weight"),
            (r"conv([13])\.weight", r"conv\1_1x1.conv.weight"),
            (r"bn([13])", r"conv\1_1x1.bn"),
            (r"downsample\.0", "shortcut.conv"),
            (r"downsample\.1", "shortcut.bn"),
            (r"layer(\d)", lambda m: f"stages.{int(m[1]) - 1}"),
            (r"^fc", "head.fc"),
        ):
            key = re.sub(pattern, name, key)
        renamed[key] = value.unsqueeze(-1) if "conv_lambda.weight" in key else value
    return renamed


def test_timm_50ts_layout():
    assert ARCHS["timm_50ts"]["placement"] == ((), (3,), (1, 3, 5), (1,))
    with torch.device("meta"):
        model = LambdaResNet(arch="timm_50ts", num_classes=1000)
    assert isinstance(model.stem[2], torch.nn.SiLU)
    published = timm_names(model.state_dict())
    assert published["stages.2.3.self_attn.conv_lambda.weight"].shape == (16, 1, 9, 9, 1)
    assert {"stem.conv3.conv.weight", "stages.0.0.shortcut.bn.bias"} < published.keys()
    converted = convert_official("timm_lambda_resnet", published, classifier=True)
    assert converted.keys() == model.state_dict().keys()


def test_embeddings_without_bias():
    """The paper has no bias; a file without one fits a model without one."""
    published = Fixture("lambda_resnet50").state_dict
    without = {k: v for k, v in published.items() if "lambda_conv.bias" not in k}
    converted = convert_official("lambda_resnet", without)
    assert len(converted) == len(without) - 2  # the classifier
    assert len(convert_official("lambda_resnet", published)) == len(published) - 2
    with torch.device("meta"):
        LambdaResNet().load_state_dict(converted, assign=True)
