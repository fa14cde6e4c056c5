"""Public names stay: layers, registered names, configs, weight families, parameter names.

`tests/data/public_names.json` lists them, and the flags and defaults. Names may be added.
"""

import hashlib
from pathlib import Path

import pytest
import torch
from mmseg.registry import MODELS

import mmseg_ext.layers
from mmseg_ext.doctor.installation import registered_names
from mmseg_ext.published import FAMILIES
from tests.models import PUBLIC

ROOT = Path(__file__).parents[1]

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
    "EAHead": {"type": "EAHead", **HEAD},
    "JSegEAHead": {"type": "JSegEAHead", **HEAD, "norm_cfg": None},
    "DANetEAHead": {"type": "DANetEAHead", **HEAD},
    "MaSAHead": {"type": "MaSAHead", **HEAD},
}


def weights_of(config: dict) -> str:
    """Return a digest of the names and shapes in a model's state dict."""
    with torch.device("meta"):
        state = MODELS.build(dict(config)).state_dict()
    lines = sorted(f"{name} {tuple(value.shape)}" for name, value in state.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_weights_keep_their_names_and_shapes(name):
    assert weights_of(MODEL_CONFIGS[name]) == PUBLIC["weights"][name]


def missing(kind: str, present) -> set[str]:
    return set(PUBLIC[kind]) - set(present)


def test_names():
    assert not missing("layers", mmseg_ext.layers.__all__)
    assert all(hasattr(mmseg_ext.layers, name) for name in PUBLIC["layers"])
    assert not missing("registered", registered_names())
    assert not missing("configs", [path.stem for path in (ROOT / "configs").glob("*.py")])
    assert not missing("families", FAMILIES)
