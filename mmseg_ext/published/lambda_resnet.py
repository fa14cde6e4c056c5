"""LambdaResNet classifiers in the names of d-li14/lambda.pytorch and of timm (26t and 50ts)."""

import re
from collections.abc import Callable

import torch
from torch import Tensor

from mmseg_ext.backbones.lambda_resnet import ARCHS, LambdaResNet
from mmseg_ext.published.key_map import Rule, StateDict, check_keys, rename_keys

_NORM = r"(weight|bias|running_mean|running_var|num_batches_tracked)"
_BLOCK = r"(layer\d+\.\d+)"

_PUBLIC_RULES: tuple[Rule, ...] = (
    (r"(conv1\.weight|bn1\..+)", r"\1"),
    (rf"{_BLOCK}\.conv2\.conv_qkv\.weight", r"\1.conv2.qkv.weight"),
    (rf"{_BLOCK}\.conv2\.lambda_conv\.(weight|bias)", r"\1.conv2.position.\2"),
    (rf"{_BLOCK}\.(conv[123]\.weight|conv2\.norm_[qv]\..+|bn[123]\..+|downsample\..+)", r"\1.\2"),
)

_TIMM_BLOCK = r"stages\.(\d+)\.(\d+)"
# Stage n of timm is layer n + 1: rename_keys first gives `stages.n.m` the block's inner names.
_TIMM_RULES: tuple[Rule, ...] = tuple(
    rule
    for i in (1, 2, 3)
    for rule in (
        (rf"stem\.conv{i}\.conv\.weight", f"stem.{3 * (i - 1)}.weight"),
        (rf"stem\.conv{i}\.bn\.{_NORM}", rf"stem.{3 * (i - 1) + 1}.\1"),
        (rf"{_TIMM_BLOCK}\.conv{i}_(?:1x1|kxk)\.conv\.weight", rf"stages.\1.\2.conv{i}.weight"),
        (rf"{_TIMM_BLOCK}\.conv{i}_(?:1x1|kxk)\.bn\.{_NORM}", rf"stages.\1.\2.bn{i}.\3"),
    )
) + (
    (rf"{_TIMM_BLOCK}\.shortcut\.conv\.weight", r"stages.\1.\2.downsample.0.weight"),
    (rf"{_TIMM_BLOCK}\.shortcut\.bn\.{_NORM}", r"stages.\1.\2.downsample.1.\3"),
    (rf"{_TIMM_BLOCK}\.self_attn\.qkv\.weight", r"stages.\1.\2.conv2.qkv.weight"),
    (rf"{_TIMM_BLOCK}\.self_attn\.norm_([qv])\.{_NORM}", r"stages.\1.\2.conv2.norm_\3.\4"),
    (
        rf"{_TIMM_BLOCK}\.self_attn\.conv_lambda\.(weight|bias)",
        r"stages.\1.\2.conv2.position.\3",
    ),
    (rf"{_TIMM_BLOCK}\.post_attn\.{_NORM}", r"stages.\1.\2.bn2.\3"),
)


def _fc_rules(prefix: str, classifier: bool) -> list[Rule]:
    return [(rf"{prefix}fc\.(weight|bias)", r"fc.\1" if classifier else None)]


def _map_embeddings(state_dict: StateDict, axes: Callable[[Tensor], Tensor]) -> StateDict:
    """Position convolutions' weights to embeddings (k, u, r, r)."""
    return {
        key: axes(value) if key.endswith(".position.weight") else value
        for key, value in state_dict.items()
    }


def _num_classes(state_dict: StateDict, classifier: bool) -> int | None:
    if not classifier:
        return None
    if "fc.weight" not in state_dict:
        raise ValueError("missing keys: the classifier's")
    return len(state_dict["fc.weight"])


def convert_lambda_resnet(state_dict: StateDict, classifier: bool) -> StateDict:
    """The state dict of `LambdaResNet(depth, position_bias=True)`, its depth read off the keys.

    Raises:
        ValueError: listing unmapped and missing keys.
    """
    rules = [*_PUBLIC_RULES, *_fc_rules("", classifier)]
    # Conv3d's (k, u, 1, r, r): the value depth is its first, trivial axis.
    converted = _map_embeddings(rename_keys(state_dict, rules), lambda w: w.squeeze(2))
    with torch.device("meta"):
        model = LambdaResNet(
            num_classes=_num_classes(converted, classifier), **_infer_design(converted)
        )
    return check_keys(converted, model)


def convert_timm_lambda_resnet(state_dict: StateDict, classifier: bool) -> StateDict:
    """The state dict of `LambdaResNet(arch='timm_26t')` or `'timm_50ts'`, whichever fits.

    Raises:
        ValueError: listing unmapped and missing keys.
    """
    rules = [*_TIMM_RULES, *_fc_rules(r"head\.", classifier)]
    renamed = {
        re.sub(r"stages\.(\d+)", lambda m: f"layer{int(m[1]) + 1}", key): value
        for key, value in rename_keys(state_dict, rules).items()
    }
    # Conv3d's (k, 1, r, r, 1): the value depth is its last, trivial axis.
    converted = _map_embeddings(renamed, lambda w: w.squeeze(4))
    # 26t and 50ts differ in the third stage's blocks first: two and six.
    arch = "timm_50ts" if any(k.startswith("layer3.2.") for k in converted) else "timm_26t"
    with torch.device("meta"):
        model = LambdaResNet(
            arch=dict(ARCHS[arch]), num_classes=_num_classes(converted, classifier)
        )
    return check_keys(converted, model)


def _infer_design(state_dict: StateDict) -> dict:
    """Depth, placement and the lambda layers' sizes from the names and shapes of the entries."""
    counts = []
    placement = []
    for stage in range(1, 5):
        blocks = {int(m[1]) for k in state_dict if (m := re.match(rf"layer{stage}\.(\d+)\.", k))}
        counts.append(max(blocks, default=0) + 1)
        placement.append(
            [b for b in sorted(blocks) if f"layer{stage}.{b}.conv2.qkv.weight" in state_dict]
        )
    design = {"depth": counts, "placement": placement}
    for key, value in state_dict.items():
        if key.endswith(".position.weight"):
            layer = key.removesuffix("position.weight")
            key_depth, intra_depth, receptive_field, _ = value.shape
            queries = state_dict.get(f"{layer}norm_q.weight", value.new_empty(key_depth))
            return {
                **design,
                "key_depth": key_depth,
                "num_heads": len(queries) // key_depth,
                "intra_depth": intra_depth,
                "receptive_field": receptive_field,
                "position_bias": f"{layer}position.bias" in state_dict,
            }
    return design
