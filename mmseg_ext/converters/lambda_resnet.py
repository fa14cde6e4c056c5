"""Lambda-ResNet classifiers of d-li14/lambda.pytorch (646de55) and timm (aa4b585, 26t and 50ts)."""

import re

import torch

from mmseg_ext.backbones.lambda_resnet import ARCHS, LambdaResNet
from mmseg_ext.converters.key_map import (
    Rule,
    StateDict,
    blocks_in,
    check_keys,
    count_classes,
    entry,
    rename_keys,
)

DEFAULT_CFGS = {
    "lambda_resnet": LambdaResNet.default_cfgs[""],
    "timm_lambda_resnet": LambdaResNet.default_cfgs["timm_26t"],
}
_BLOCK = r"(layer\d+\.\d+)"  # layer3.22
_PUBLIC_RULES: list[Rule] = [
    (r"(conv1\.weight|bn1\..+)", r"\1"),
    (rf"{_BLOCK}\.conv2\.conv_qkv\.weight", r"\1.conv2.qkv.weight"),
    (rf"{_BLOCK}\.conv2\.lambda_conv\.(weight|bias)", r"\1.conv2.position.\2"),
    (rf"{_BLOCK}\.(conv[123]\.weight|conv2\.norm_[qv]\..+|bn[123]\..+|downsample\..+)", r"\1.\2"),
]

# These rules rename the parts of a block. Then stage n becomes layer n + 1.
_TIMM_BLOCK = r"(stages\.\d+\.\d+)"  # stages.2.22
_TIMM_RULES: list[Rule] = [
    (r"stem\.conv1\.conv\.(.+)", r"stem.0.\1"),
    (r"stem\.conv1\.bn\.(.+)", r"stem.1.\1"),
    (r"stem\.conv2\.conv\.(.+)", r"stem.3.\1"),
    (r"stem\.conv2\.bn\.(.+)", r"stem.4.\1"),
    (r"stem\.conv3\.conv\.(.+)", r"stem.6.\1"),
    (r"stem\.conv3\.bn\.(.+)", r"stem.7.\1"),
    (rf"{_TIMM_BLOCK}\.conv([123])_(?:1x1|kxk)\.conv\.(.+)", r"\1.conv\2.\3"),
    (rf"{_TIMM_BLOCK}\.conv([123])_(?:1x1|kxk)\.bn\.(.+)", r"\1.bn\2.\3"),
    (rf"{_TIMM_BLOCK}\.shortcut\.conv\.(.+)", r"\1.downsample.0.\2"),
    (rf"{_TIMM_BLOCK}\.shortcut\.bn\.(.+)", r"\1.downsample.1.\2"),
    (rf"{_TIMM_BLOCK}\.self_attn\.(qkv\..+|norm_[qv]\..+)", r"\1.conv2.\2"),
    (rf"{_TIMM_BLOCK}\.self_attn\.conv_lambda\.(.+)", r"\1.conv2.position.\2"),
    (rf"{_TIMM_BLOCK}\.post_attn\.(.+)", r"\1.bn2.\2"),
]


def _as_embeddings(state_dict: StateDict, value_depth: int) -> StateDict:
    """Remove the axis `value_depth` of length 1 from Conv3d weights: embeddings (k, u, r, r)."""
    squeezed = dict(state_dict)
    for key, value in state_dict.items():
        if key.endswith(".position.weight"):
            squeezed[key] = value.squeeze(value_depth)
    return squeezed


def convert_lambda_resnet(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `LambdaResNet(depth, position_bias=True)`."""
    rules = [*_PUBLIC_RULES, (r"(fc\..+)", r"\1" if classifier else None)]
    converted = _as_embeddings(rename_keys(state_dict, rules), 2)  # of (k, u, 1, r, r)
    classes = count_classes(converted, "fc.weight", classifier)
    with torch.device("meta"):
        model = LambdaResNet(num_classes=classes, **_infer_design(converted))
    return check_keys(converted, model)


def convert_timm_lambda_resnet(state_dict: StateDict, classifier: bool) -> StateDict:
    """Return the state dict of `LambdaResNet` with the arch 'timm_26t' or 'timm_50ts'."""
    rules = [*_TIMM_RULES, (r"head\.(fc\..+)", r"\1" if classifier else None)]
    renamed = {}
    for key, value in rename_keys(state_dict, rules).items():
        name = re.sub(r"stages\.(\d+)", lambda stage: f"layer{int(stage[1]) + 1}", key)
        renamed[name] = value
    converted = _as_embeddings(renamed, 4)  # of (k, u, r, r, 1)
    # The third stage has two blocks in 26t and six in 50ts.
    arch = "timm_50ts" if len(blocks_in(converted, "layer3")) > 2 else "timm_26t"
    classes = count_classes(converted, "fc.weight", classifier)
    with torch.device("meta"):
        model = LambdaResNet(arch=dict(ARCHS[arch]), num_classes=classes)
    return check_keys(converted, model)


def _infer_design(state_dict: StateDict) -> dict:
    """Return depth, placement and sizes of the lambda layers from the names and shapes."""
    depth = []
    placement = []  # the blocks with a lambda layer, in each stage
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        blocks = blocks_in(state_dict, stage)
        depth.append(max(blocks, default=0) + 1)
        placement.append([i for i in blocks if f"{stage}.{i}.conv2.qkv.weight" in state_dict])
    design = {"depth": depth, "placement": placement}
    embeddings = [key for key in state_dict if key.endswith(".position.weight")]
    if not embeddings:
        return design
    key = embeddings[0]
    layer = key.removesuffix("position.weight")
    key_depth, intra_depth, receptive_field, _ = state_dict[key].shape
    return {
        **design,
        "key_depth": key_depth,
        "num_heads": len(entry(state_dict, f"{layer}norm_q.weight")) // key_depth,
        "intra_depth": intra_depth,
        "receptive_field": receptive_field,
        "position_bias": f"{layer}position.bias" in state_dict,
    }
