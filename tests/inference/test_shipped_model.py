"""The weights that come with the package: what the file holds, and that its card tells the same."""

import hashlib
import json
from pathlib import Path

import torch
import yaml
from mmengine.config import Config
from mmseg.registry import MODELS
from safetensors import safe_open
from safetensors.torch import load_file

from mmseg_ext.datasets import CamVidDataset
from mmseg_ext.environment import shipped_model
from tests.configs import CONFIGS


def test_the_file_and_its_card():
    config, path = map(Path, shipped_model())
    assert path.stat().st_size <= 6_000_000
    weights = load_file(path)
    assert {value.dtype for value in weights.values()} == {torch.float16}
    model = MODELS.build(Config.fromfile(config).model)
    model.load_state_dict(weights, strict=True)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with safe_open(path, "pt") as file:
        about = file.metadata()
    meta = json.loads(about["dataset_meta"])
    assert {key: meta[key] for key in CamVidDataset.METAINFO} == {
        key: [*map(type(meta[key][0]), value)] for key, value in CamVidDataset.METAINFO.items()
    }
    assert about["config"] == config.name and "non-commercial" in about["licence"]
    card = (path.parent / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(path.read_bytes()).hexdigest() in card
    metafile = yaml.safe_load((CONFIGS / "metafiles/ea.yml").read_text())
    (entry,) = (model for model in metafile["Models"] if model["Name"] == config.stem)
    (miou, *_) = about["mIoU"].split()
    assert entry["Results"][0]["Metrics"]["mIoU"] == float(miou)
    assert f"| mIoU | {miou} |" in card
