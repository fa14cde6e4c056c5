"""Outputs of the published implementations, and our modules with the same weights.

A fixture (`parity/NAME.npz`) stores the outputs `out_*` of a published module as float32, and
`meta`, a JSON string: repository and commit, the keys and shapes of the published state dict in
order, the shapes of the inputs, `seed`, `gain` and constructor arguments. The outputs were computed
in float64 and eval mode. Weights and inputs are not stored. They follow this rule:

    r = numpy.random.RandomState((zlib.crc32(name.encode()) + seed) & 0xFFFFFFFF)
    a = r.standard_normal(shape)

- An input is `a`.
- `num_batches_tracked` is zero.
- `running_var` is 1 + 0.25 |a|.
- `running_mean` and every `bias` are 0.1 a.
- Other entries with at most one dimension, and those whose last name starts with `gamma`, are
  1 + 0.1 a.
- Everything else is gain * a / sqrt(product of shape[1:]).

All are rounded to float32. State dict entries that `keys` does not list keep the value that the
published code computes (the angles and decays of RMT, the positions of EAMLP). Some outputs are
stored in part: `eanet_r101_voc` has every 4th row and column of the logits at input size
(align_corners=True); `lambda_resnet50` and `timm_lambda_resnet26t` have every 4th or 8th channel.

`tests/rebuild_fixtures.py` rebuilds the fixtures from the published repositories.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
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


def _standard_normal(name: str, shape: list[int], seed: int) -> np.ndarray:
    state = np.random.RandomState((zlib.crc32(name.encode()) + seed) & 0xFFFFFFFF)
    return state.standard_normal(shape)


def _entry(key: str, shape: list[int], seed: int, gain: float) -> Tensor:
    leaf = key.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    a = _standard_normal(key, shape, seed)
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
            self.outputs = {
                key.removeprefix("out_"): torch.from_numpy(archive[key])
                for key in archive.files
                if key.startswith("out_")
            }
        seed, gain = self.meta["seed"], self.meta["gain"]
        self.inputs = {
            name: torch.from_numpy(_standard_normal(name, shape, seed).astype(np.float32))
            for name, shape in self.meta["inputs"].items()
        }
        self.state_dict = {k: _entry(k, s, seed, gain) for k, s in self.meta["keys"].items()}


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
            if ours.shape != theirs.shape:
                raise ValueError(f"{name}: shape {ours.shape} instead of {theirs.shape}")
            errors.append(float((ours - theirs).abs().max() / theirs.abs().max()))
        return max(e if np.isfinite(e) else np.inf for e in errors)


def _external_attention(fixture: Fixture) -> tuple[nn.Module, dict[str, Tensor]]:
    return ExternalAttention2d(512), fixture.state_dict


def _multi_head_external_attention(fixture: Fixture) -> tuple[nn.Module, dict[str, Tensor]]:
    sizes = fixture.meta["dim"], fixture.meta["num_heads"]
    return MultiHeadExternalAttention(*sizes), fixture.state_dict


def _manhattan_attention(fixture: Fixture) -> tuple[nn.Module, dict[str, Tensor]]:
    names = ("dim", "num_heads", "decay_start", "decay_range")
    decomposed = fixture.meta["name"] == "masa_decomposed"
    layer = ManhattanAttention(*(fixture.meta[n] for n in names), decomposed=decomposed)
    return layer, {k.replace("lepe.conv", "lce"): v for k, v in fixture.state_dict.items()}


def _lambda_layer(fixture: Fixture) -> tuple[nn.Module, dict[str, Tensor]]:
    meta, theirs = fixture.meta, fixture.state_dict
    sizes = (meta[name] for name in ("dim", "dim_out", "dim_k", "heads", "dim_u"))
    return LambdaLayer(*sizes, receptive_field=meta["r"], position_bias=True), {
        "qkv.weight": torch.cat([theirs[f"to_{part}.weight"] for part in "qkv"]),
        "position.weight": theirs["pos_conv.weight"].squeeze(2),
        "position.bias": theirs["pos_conv.bias"],
        **{key: value for key, value in theirs.items() if key.startswith("norm_")},
    }


def _re_attention(fixture: Fixture) -> tuple[nn.Module, dict[str, Tensor]]:
    scale = fixture.meta["transform_scale"]
    return ReAttention(384, 12, transform_scale=scale), fixture.state_dict


LAYERS: dict[str, Callable[[Fixture], tuple[nn.Module, dict[str, Tensor]]]] = {
    "eanet_external_attention": _external_attention,
    "eamlp_multi_head_external_attention_384": _multi_head_external_attention,
    "masa_decomposed": _manhattan_attention,
    "masa_full": _manhattan_attention,
    "lambda_local_u4": _lambda_layer,
    "deepvit_re_attention": _re_attention,
}
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
}


def cases(name: str) -> Iterator[Case]:
    """Yield our layer or backbone for a fixture; a backbone as classifier, then for feature maps.

    Backbones need the mm stack, layers only torch.
    """
    fixture = Fixture(name)
    (x,) = fixture.inputs.values()
    if name in LAYERS:
        module, weights = LAYERS[name](fixture)
        module.load_state_dict(weights)
        yield Case(module.eval(), x, fixture.outputs)
        return
    from mmseg_ext import backbones
    from mmseg_ext.checkpoint import convert_official

    family, backbone, arguments = BACKBONES[name]
    logits = {k: v for k, v in fixture.outputs.items() if k == "logits"}
    maps = {k: v for k, v in fixture.outputs.items() if k != "logits"}
    for published, classes in ((logits, 1000), (maps, None)):
        if published:
            module = getattr(backbones, backbone)(num_classes=classes, **arguments)
            classifier = classes is not None
            module.load_state_dict(convert_official(family, fixture.state_dict, classifier))
            yield Case(module.eval(), x, published)
