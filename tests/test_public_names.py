"""What users write down: names of layers, models, converters, tools, flags, configs and weights.

`tests/data/public_names.json` lists them. More may be added, none may go.
"""

import argparse
import hashlib
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from mmseg.registry import MODELS

import mmseg_ext.layers
from mmseg_ext.checkpoint import convert_official
from mmseg_ext.environment import registered_names

ROOT = Path(__file__).parents[1]
LISTED = json.loads((ROOT / "tests" / "data" / "public_names.json").read_text())

HEAD = {"in_channels": 2048, "num_classes": 19, "norm_cfg": {"type": "SyncBN"}}
DEEP_LAMBDA = {"stem": "deep", "avg_down": True, "se_ratio": 1 / 16, "output_stride": 8}
DEEPVIT_ARCHS = ("16b", "24b", "32b", "s", "l")
EAMLP_ARCHS = ("7", "10", "12", "14", "19", "24")
MODEL_CONFIGS = {
    **{f"RMT {a}": {"type": "RMT", "arch": a} for a in ("tiny", "small", "base", "large")},
    "RMT classifier": {"type": "RMT", "num_classes": 10},
    **{f"DeepViT {a}": {"type": "DeepViT", "arch": a} for a in DEEPVIT_ARCHS},
    "DeepViT plain": {"type": "DeepViT", "re_attention": False, "num_classes": 10},
    **{f"EAMLP {a}": {"type": "EAMLP", "arch": a, "num_classes": 10} for a in EAMLP_ARCHS},
    **{f"LambdaResNet {d}": {"type": "LambdaResNet", "depth": d} for d in (26, 50, 101)},
    "LambdaResNet deep": {"type": "LambdaResNet", "placement": "hybrid", **DEEP_LAMBDA},
    "LambdaResNet timm_26t": {"type": "LambdaResNet", "arch": "timm_26t", "num_classes": 10},
    "LambdaResNet timm_50ts": {"type": "LambdaResNet", "arch": "timm_50ts", "out_indices": 1},
    "EAHead": {"type": "EAHead", **HEAD},
    "JSegEAHead": {"type": "JSegEAHead", **HEAD, "norm_cfg": None},
    "DANetEAHead": {"type": "DANetEAHead", **HEAD},
    "DANetEAHead alone": {"type": "DANetEAHead", **HEAD, "channel_attention": False},
    "MaSAHead": {"type": "MaSAHead", **HEAD},
}


def weights_of(config: dict) -> str:
    """A digest of the names and shapes of a model's state dict."""
    with torch.device("meta"):
        state = MODELS.build(dict(config)).state_dict()
    lines = sorted(f"{name} {tuple(value.shape)}" for name, value in state.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_weights_keep_their_names_and_shapes(name):
    assert weights_of(MODEL_CONFIGS[name]) == LISTED["weights"][name]


def missing(kind: str, present) -> set[str]:
    return set(LISTED[kind]) - set(present)


def test_layers_and_registered_names():
    assert not missing("layers", mmseg_ext.layers.__all__)
    assert all(hasattr(mmseg_ext.layers, name) for name in LISTED["layers"])
    assert not missing("registered", registered_names())


def test_configs():
    assert not missing("configs", [path.stem for path in (ROOT / "configs").glob("*.py")])


@pytest.mark.parametrize("family", LISTED["families"])
def test_families_of_published_weights(family):
    """A known family complains of the empty checkpoint, not of its name."""
    with pytest.raises(ValueError) as error:
        convert_official(family, {}, classifier=False)
    assert "family must be" not in str(error.value)


class _Parsed(BaseException):
    """Ends a command where it would read its arguments."""


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Options and positional arguments, those of subcommands included."""
    found = []
    for action in parser._actions:
        found += action.option_strings or [action.dest]
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found += [f"{name} {flag}" for flag in flags_of(inner)]
    return sorted(set(found) - {"-h", "--help"})


def flags_of_tool(tool: str, monkeypatch) -> list[str]:
    parsers = []

    def stop(parser, *args, **kwargs):
        parsers.append(parser)
        raise _Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
    monkeypatch.setattr(sys, "argv", [tool])
    with pytest.raises(_Parsed):
        runpy.run_path(str(ROOT / tool), run_name="__main__")
    return flags_of(parsers[0])


@pytest.mark.parametrize("tool", LISTED["tools"])
def test_tools_keep_their_flags(tool, monkeypatch):
    assert set(LISTED["tools"][tool]) <= set(flags_of_tool(tool, monkeypatch))
