"""Outputs of the published code, and our modules with the same weights and inputs.

A fixture (`parity/NAME.npz`) stores the outputs `out_*` of a published module, computed in float64
and eval mode. `meta` is a JSON string: repository, commit, the keys and shapes of the state dict in
order, the shapes of the inputs, `seed`, `gain` and constructor arguments. Weights and inputs are
computed from their names (`_entry`, `_normal`), rounded to float32.

State dict entries that `meta` does not list keep the values of their formulas (RMT's angles and
decays, EAMLP's positions). `eanet_r101_voc` stores every 4th row and column of the logits at input
size (align_corners=True), the convolutional networks every 4th or 8th channel of the maps.
`tests/rebuild_fixtures.py` rebuilds all fixtures from the published repositories.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mmseg_ext.layers import (
    ExternalAttention2d,
    LambdaLayer,
    ManhattanAttention,
    MultiHeadExternalAttention,
    ReAttention,
)

FOLDER = Path(__file__).parent / "parity"


def _normal(name: str, shape: list[int], seed: int) -> np.ndarray:
    state = np.random.RandomState((zlib.crc32(name.encode()) + seed) & 0xFFFFFFFF)
    return state.standard_normal(shape)


def _entry(key: str, shape: list[int], seed: int, gain: float) -> Tensor:
    leaf = key.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    a = _normal(key, shape, seed)
    if leaf == "running_var":
        value = 1 + 0.25 * np.abs(a)
    elif leaf in ("running_mean", "bias"):
        value = 0.1 * a
    elif len(shape) <= 1 or leaf.startswith("gamma"):
        value = 1 + 0.1 * a
    else:
        value = gain * a / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(np.asarray(value, dtype=np.float32).reshape(shape))


class Fixture:
    """The `meta`, `inputs`, `state_dict` and `outputs` of one file, in float32."""

    def __init__(self, name: str, folder: Path = FOLDER):
        with np.load(folder / f"{name}.npz") as archive:
            self.meta = json.loads(str(archive["meta"]))
            self.outputs: dict[str, Tensor] = {}
            for key in archive.files:
                if key.startswith("out_"):
                    self.outputs[key.removeprefix("out_")] = torch.from_numpy(archive[key])
        seed, gain = self.meta["seed"], self.meta["gain"]
        self.inputs: dict[str, Tensor] = {}
        for name, shape in self.meta["inputs"].items():
            self.inputs[name] = torch.from_numpy(_normal(name, shape, seed)).float()
        self.state_dict: dict[str, Tensor] = {}
        for key, shape in self.meta["keys"].items():
            self.state_dict[key] = _entry(key, shape, seed, gain)


class Case(NamedTuple):
    """A module in eval mode with a fixture's weights, its input, and the published outputs."""

    module: nn.Module
    x: Tensor
    published: dict[str, Tensor]

    def error(self, outputs: Tensor | Sequence[Tensor]) -> float:
        """Return the largest difference over the largest published value; inf if not finite."""
        errors = []
        for name, theirs in self.published.items():
            index = int(name.removeprefix("stage")) if name.startswith("stage") else -1
            ours = outputs if isinstance(outputs, Tensor) else outputs[index]
            # Some maps are stored without all channels.
            ours = ours.detach().double().cpu()[:, :: ours.shape[1] // theirs.shape[1]]
            assert ours.shape == theirs.shape
            errors.append(float((ours - theirs).abs().max() / theirs.abs().max()))
        return float(np.nan_to_num(errors, nan=np.inf).max())


def _layer(name: str, meta: dict, theirs: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return our layer, and the published state dict under its names."""
    match name:
        case "eanet_external_attention":
            return ExternalAttention2d(512), theirs
        case "eamlp_multi_head_external_attention_384":
            return MultiHeadExternalAttention(meta["dim"], meta["num_heads"]), theirs
        case "masa_decomposed" | "masa_full":
            layer = ManhattanAttention(
                meta["dim"],
                meta["num_heads"],
                meta["decay_start"],
                meta["decay_range"],
                decomposed=name == "masa_decomposed",
            )
            weights = {key.replace("lepe.conv", "lce"): value for key, value in theirs.items()}
            return layer, weights
        case "lambda_local_u1" | "lambda_local_u4" | "lambda_global":
            return _lambda_layer(name, meta, theirs)
    return ReAttention(384, 12, transform_scale=meta["transform_scale"]), theirs


def _lambda_layer(
    name: str, meta: dict, theirs: dict[str, Tensor]
) -> tuple[nn.Module, dict[str, Tensor]]:
    weights = {key: value for key, value in theirs.items() if key.startswith("norm_")}
    projections = [theirs["to_q.weight"], theirs["to_k.weight"], theirs["to_v.weight"]]
    weights["qkv.weight"] = torch.cat(projections)
    sizes = (meta["dim"], meta["dim_out"], meta["dim_k"], meta["heads"], meta["dim_u"])
    if name == "lambda_global":
        weights["position.weight"] = theirs["rel_pos_emb"].permute(2, 3, 0, 1)
        resolution = (meta["n"], meta["n"])
        return LambdaLayer(*sizes, receptive_field=None, resolution=resolution), weights
    weights["position.weight"] = theirs["pos_conv.weight"].squeeze(2)
    weights["position.bias"] = theirs["pos_conv.bias"]
    return LambdaLayer(*sizes, receptive_field=meta["r"], position_bias=True), weights


LAYERS = ("eanet_external_attention", "eamlp_multi_head_external_attention_384")
LAYERS += ("masa_decomposed", "masa_full", "deepvit_re_attention")
LAYERS += ("lambda_local_u1", "lambda_local_u4", "lambda_global")
# Fixture: family of published weights, backbone, and its arguments.
BACKBONES: dict[str, tuple[str, str, dict]] = {
    "rmt_tiny_features": ("rmt", "RMT", {"arch": "tiny"}),
    "rmt_small_features": ("rmt", "RMT", {"arch": "small"}),
    "rmt_classifier_small": ("rmt", "RMT", {"arch": "small"}),
    "eamlp_14": ("eamlp", "EAMLP", {"arch": "14"}),
    "deepvit_re_attn_16b": ("deepvit", "DeepViT", {"arch": "16b"}),
    "deepvit_s": ("deepvit", "DeepViT", {"arch": "s"}),
    "deepvit_l_64": ("deepvit", "DeepViT", {"arch": "l", "img_size": 64}),
    "lambda_resnet50": ("lambda_resnet", "LambdaResNet", {"position_bias": True}),
    "timm_lambda_resnet26t": ("timm_lambda_resnet", "LambdaResNet", {"arch": "timm_26t"}),
    "efficientnet_lite0": ("efficientnet_lite", "EfficientNetLite", {"arch": "0"}),
    "timm_efficientnet_lite2": ("timm_efficientnet_lite", "EfficientNetLite", {"arch": "2"}),
}


def cases(name: str) -> Iterator[Case]:
    """Yield our layer or backbone for a fixture; a backbone as classifier, then for feature maps.

    Backbones need the mm stack, layers only torch.
    """
    fixture = Fixture(name)
    (x,) = fixture.inputs.values()
    if name in LAYERS:
        module, weights = _layer(name, fixture.meta, fixture.state_dict)
        module.load_state_dict(weights)
        yield Case(module.eval(), x, fixture.outputs)
        return
    from mmseg_ext import backbones
    from mmseg_ext.checkpoint import convert_official

    family, backbone, arguments = BACKBONES[name]
    for classifier in (True, False):
        published = {}
        for output, value in fixture.outputs.items():
            if (output == "logits") == classifier:
                published[output] = value
        if published:
            classes = 1000 if classifier else None
            module = getattr(backbones, backbone)(num_classes=classes, **arguments)
            module.load_state_dict(convert_official(family, fixture.state_dict, classifier))
            yield Case(module.eval(), x, published)
