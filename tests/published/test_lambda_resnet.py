"""Published LambdaResNets, converted; the tests of the backbone compare their outputs."""

import torch

from mmseg_ext.backbones.lambda_resnet import ARCHS, LambdaResNet
from mmseg_ext.checkpoint import convert_official
from tests.parity import Fixture


def timm_50ts_keys() -> dict[str, torch.Tensor]:
    """A state dict in timm's names for lambda_resnet50ts, as its byoanet.py lays it out."""
    empty = {}

    def norm(name: str, width: int) -> None:
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            empty[f"{name}.{leaf}"] = torch.empty(width)
        empty[f"{name}.num_batches_tracked"] = torch.tensor(0)

    def conv(name: str, *shape: int) -> None:
        empty[f"{name}.conv.weight"] = torch.empty(shape)
        norm(f"{name}.bn", shape[0])

    for i, (a, b) in enumerate(((3, 24), (24, 32), (32, 64))):
        conv(f"stem.conv{i + 1}", b, a, 3, 3)
    width = 64
    attention = {(1, 3), (2, 1), (2, 3), (2, 5), (3, 1)}
    for stage, count in enumerate((3, 4, 6, 3)):
        mid = 64 * 2**stage
        for i in range(count):
            block = f"stages.{stage}.{i}"
            if i == 0:
                conv(f"{block}.shortcut", 4 * mid, width, 1, 1)
            conv(f"{block}.conv1_1x1", mid, width, 1, 1)
            if (stage, i) in attention:
                value = mid // 4
                empty[f"{block}.self_attn.qkv.weight"] = torch.empty(80 + value, mid, 1, 1)
                norm(f"{block}.self_attn.norm_q", 64)
                norm(f"{block}.self_attn.norm_v", value)
                empty[f"{block}.self_attn.conv_lambda.weight"] = torch.empty(16, 1, 9, 9, 1)
                empty[f"{block}.self_attn.conv_lambda.bias"] = torch.empty(16)
                norm(f"{block}.post_attn", mid)
            else:
                conv(f"{block}.conv2_kxk", mid, mid, 3, 3)
            conv(f"{block}.conv3_1x1", 4 * mid, mid, 1, 1)
            width = 4 * mid
    empty["head.fc.weight"], empty["head.fc.bias"] = torch.empty(1000, 2048), torch.empty(1000)
    return empty


def test_timm_50ts_layout():
    converted = convert_official("timm_lambda_resnet", timm_50ts_keys(), classifier=True)
    with torch.device("meta"):
        model = LambdaResNet(arch="timm_50ts", num_classes=1000)
    assert set(converted) == set(model.state_dict())
    assert isinstance(model.stem[2], torch.nn.SiLU)
    assert ARCHS["timm_50ts"]["placement"] == ((), (3,), (1, 3, 5), (1,))


def test_embeddings_without_bias():
    """The paper has no bias; a file without one fits a model without one."""
    published = Fixture("lambda_resnet50").state_dict
    without = {k: v for k, v in published.items() if "lambda_conv.bias" not in k}
    converted = convert_official("lambda_resnet", without)
    assert len(converted) == len(without) - 2  # the classifier
    with torch.device("meta"):
        LambdaResNet().load_state_dict(converted, assign=True)
