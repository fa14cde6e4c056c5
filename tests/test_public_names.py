"""Public names stay: docs/api.md says what is public, `tests/data/public_names.json` lists it.

`python -m tests.test_public_names` writes the list. Until the next major version, its diff may only
add names, flags and optional arguments.
"""

import hashlib
import importlib
import inspect
import json
from pathlib import Path

import pytest
import torch
from mmseg.registry import MODELS

import mmseg_ext
from mmseg_ext import durable, engine, errors
from mmseg_ext.commands import COMMANDS
from mmseg_ext.commands.env import registered_names
from mmseg_ext.converters import FAMILIES

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests/data/public_names.json"
PUBLIC = json.loads(FILE.read_text())

HEAD = {"in_channels": 2048, "num_classes": 19, "norm_cfg": {"type": "SyncBN"}}
# Checkpoints of earlier versions still load: one model of each kind keeps the names of its weights.
MODEL_CONFIGS = {
    "RMT tiny": {"type": "RMT", "arch": "tiny"},
    "RMT base": {"type": "RMT", "arch": "base"},
    "DeepViT 16b": {"type": "DeepViT", "arch": "16b"},
    "DeepViT s": {"type": "DeepViT", "arch": "s"},
    "EAMLP 14": {"type": "EAMLP", "arch": "14", "num_classes": 10},
    "LambdaResNet 50": {"type": "LambdaResNet", "depth": 50},
    "LambdaResNet timm_26t": {"type": "LambdaResNet", "arch": "timm_26t", "num_classes": 10},
    "EfficientNetLite 0": {"type": "EfficientNetLite", "num_classes": 10},
    "EAHead": {"type": "EAHead", **HEAD},
    "JSegEAHead": {"type": "JSegEAHead", **HEAD, "norm_cfg": None},
    "DANetEAHead": {"type": "DANetEAHead", **HEAD},
    "MaSAHead": {"type": "MaSAHead", **HEAD},
    "UNetEAHead": {"type": "UNetEAHead", **HEAD, "in_channels": [16, 24, 40, 112, 320]},
}
# The modules of docs/api.md. Their public names are `__all__`, or the ones given here.
MODULES = {
    "mmseg_ext": set(mmseg_ext.__all__) - {"__version__"},
    "mmseg_ext.backbones": None,
    "mmseg_ext.checkpoint": None,
    "mmseg_ext.datasets": None,
    "mmseg_ext.decode_heads": None,
    "mmseg_ext.durable": None,
    "mmseg_ext.engine": None,
    "mmseg_ext.engine.build": {"build_test_runner", "build_train_runner"},
    "mmseg_ext.errors": {
        name
        for name, item in vars(errors).items()
        if getattr(item, "__module__", "") == errors.__name__ and isinstance(item, type)
    },
    "mmseg_ext.evaluation": None,
    "mmseg_ext.inference.objects": {"SegmentedObject", "geojson"},
    "mmseg_ext.inference.predictor": {"Segmentation"},
    "mmseg_ext.inspection": None,
    "mmseg_ext.layers": None,
    "mmseg_ext.reports": None,
    "mmseg_ext.segmentors": None,
}
# Methods of other classes override those of mmengine and mmsegmentation.
WITH_METHODS = ("mmseg_ext.inference", "mmseg_ext.layers")


def weights_of(config: dict) -> str:
    """Return a digest of the names and shapes in a model's state dict."""
    with torch.device("meta"):
        state = MODELS.build(dict(config)).state_dict()
    lines = sorted(f"{name} {tuple(value.shape)}" for name, value in state.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def flags_of(command: str) -> list[str]:
    actions = importlib.import_module(f"mmseg_ext.commands.{command}").parser()._actions
    flags = {flag for action in actions for flag in action.option_strings or [action.dest]}
    return sorted(flags - {"-h", "--help"})


def signature_of(item) -> list[str]:
    """Return the arguments of a function or class, positional ones first; an exception's bases."""
    if isinstance(item, type) and issubclass(item, Exception):
        return [base.__name__ for base in item.__bases__]
    arguments = inspect.signature(item).parameters.values()
    plain = [argument.replace(annotation=inspect.Parameter.empty) for argument in arguments]
    return [f"{'* ' * (a.kind is inspect.Parameter.KEYWORD_ONLY)}{a}" for a in plain]


def python_names() -> dict[str, list[str]]:
    """Return the signatures of the public names of the package."""
    items = {}
    for name, listed in MODULES.items():
        module = importlib.import_module(name)
        items |= {f"{name}.{word}": getattr(module, word) for word in listed or module.__all__}
    for path, item in list(items.items()):
        if isinstance(item, type) and item.__module__.startswith(WITH_METHODS):
            own = {n: m for n, m in vars(item).items() if n[0] != "_" and inspect.isfunction(m)}
            items |= {f"{path}.{name}": method for name, method in own.items()}
    return {path: signature_of(items[path]) for path in sorted(items)}


def public_names() -> dict:
    return {
        "configs": sorted(path.stem for path in (ROOT / "configs").glob("*.py")),
        "families": sorted(FAMILIES),
        "flags": {name: flags_of(name) for name in sorted(COMMANDS)},
        "python": python_names(),
        "registered": registered_names(),
        "weights": {name: weights_of(config) for name, config in MODEL_CONFIGS.items()},
    }


@pytest.fixture(scope="module")
def present() -> dict:
    return public_names()


@pytest.mark.parametrize("kind", PUBLIC)
def test_names_stay(kind, present):
    assert set(PUBLIC[kind]) <= set(present[kind])


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_weights_keep_their_names_and_shapes(name, present):
    assert present["weights"][name] == PUBLIC["weights"][name]


@pytest.mark.parametrize("name", PUBLIC["flags"])
def test_flags_stay(name, present):
    assert set(PUBLIC["flags"][name]) <= set(present["flags"][name])


@pytest.mark.parametrize("name", PUBLIC["python"])
def test_arguments_and_defaults_stay(name, present):
    """A changed default would change trained models unnoticed."""
    before, now = PUBLIC["python"][name], present["python"][name]
    assert set(before) <= set(now)
    kept = [argument for argument in now if argument in before or argument[0] != "*"]
    assert kept[: len(before)] == before  # positional arguments keep their places
    assert all("=" in argument or "*" in argument for argument in set(now) - set(before))


@pytest.mark.parametrize("name", durable.__all__)
def test_a_name_of_0_3_0_works(name):
    assert getattr(engine, name) is getattr(durable, name)


if __name__ == "__main__":
    FILE.write_text(json.dumps(public_names(), indent=1) + "\n")
