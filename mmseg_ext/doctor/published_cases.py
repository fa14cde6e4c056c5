"""Our modules with the weights of parity fixtures, ready to run.

A fixture stores only what a published implementation computed in float64. Weights and inputs
follow one rule on NumPy's legacy generator, seeded by the CRC of the entry's name, so that a
fixture is small and any program can rebuild it.

`LAYERS` need torch alone; `MODELS` are backbones and need the mm stack.
"""

import json
import zlib
from collections.abc import Callable
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
    """One `.npz`: `meta`, `inputs`, the published `state_dict`, and the stored `outputs`."""

    def __init__(self, name: str, folder: Path = FOLDER):
        with np.load(folder / f"{name}.npz") as archive:
            self.meta = json.loads(str(archive["meta"]))
            self.outputs = {
                key.removeprefix("out_"): torch.from_numpy(archive[key])
                for key in archive.files
                if key.startswith("out_")
            }
        seed = self.meta["seed"]
        self.inputs = {
            name: torch.from_numpy(_standard_normal(name, shape, seed).astype(np.float32))
            for name, shape in self.meta["inputs"].items()
        }
        gain = self.meta["gain"]
        self.state_dict = {k: _entry(k, s, seed, gain) for k, s in self.meta["keys"].items()}


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
