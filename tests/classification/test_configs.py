"""Every config for mmpretrain: one training step and one inference with its widths reduced.

mmpretrain imports torchvision, whose builds each fit one torch. Where it does not import, an empty
module stands in its place: what a classifier's step runs is none of it.
"""

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import load_checkpoint

from mmseg_ext import safe_loading
from mmseg_ext.backbones import EAMLP, RMT, DeepViT, LambdaResNet
from mmseg_ext.checkpoint import convert_official
from mmseg_ext.checkpoint.load_report import require_coverage
from tests.configs import CONFIGS
from tests.parity import Fixture, assert_parity

if importlib.util.find_spec("mmpretrain") is None:
    pytest.skip("mmpretrain is not installed", allow_module_level=True)

EXPERIMENTS = sorted((CONFIGS / "classification").glob("*.py"))
ARCHS = {
    "RMT": {
        "arch": {
            "depths": (1, 1, 1, 1),
            "embed_dims": (8, 16, 24, 32),
            "num_heads": (1, 2, 2, 2),
            "ffn_ratios": (2, 2, 2, 2),
            "decay_ranges": (4, 4, 6, 6),
            "decomposed": (True, True, True, False),
            "layer_scales": (None, None, None, None),
            "drop_path_rate": 0.1,
        }
    },
    "LambdaResNet": {
        "depth": (1, 1, 1, 1),
        "placement": ((), (), (0,), (0,)),
        "receptive_field": 5,
    },
    "DeepViT": {"arch": {"embed_dims": 24, "depth": 4, "num_heads": 2}, "img_size": 64},
    "EAMLP": {"arch": {"embed_dims": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2}},
}
# Parameters of the classifiers, in millions: the published code's (docs of each backbone).
PARAMETERS = {"rmt_tiny": 14.334, "rmt_small": 26.967, "rmt_base": 54.155, "rmt_large": 95.465}
PARAMETERS |= {"deepvit_s": 27.31, "deepvit_l": 58.88, "deepvit_16b": 24.43, "deepvit_32b": 48.10}
PARAMETERS |= {"eamlp_14": 29.80}


@pytest.fixture(scope="module", autouse=True)
def _mmpretrain():
    if importlib.util.find_spec("torchvision") is None:
        for name in ("", ".ops", ".ops.boxes", ".transforms", ".transforms.functional"):
            module = ModuleType(f"torchvision{name}")
            module.__path__ = []
            module.__getattr__ = lambda name: MagicMock(name=name)
            sys.modules[module.__name__] = module
        transforms = ModuleType("torchvision.transforms.transforms")
        transforms.InterpolationMode = MagicMock()
        sys.modules[transforms.__name__] = transforms
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        if "__file__" not in vars(sys.modules[name]):  # the stand-ins have every attribute
            del sys.modules[name]


@functools.cache
def load(path: Path) -> Config:
    return Config.fromfile(path)


def build(model: dict) -> torch.nn.Module:
    with DefaultScope.overwrite_default_scope("mmpretrain"):
        return revert_sync_batchnorm(MODELS.build(ConfigDict(model)))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_one_training_step_and_one_inference(path):
    from mmpretrain.structures import DataSample

    config = load(path)
    model = config.model.to_dict()
    model["backbone"] |= ARCHS[model["backbone"]["type"]] | {"num_classes": 10}
    model["data_preprocessor"]["num_classes"] = 10
    classifier = build(model).train()
    classifier.init_weights()
    optimizer = build_optim_wrapper(classifier, config.optim_wrapper)
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    samples = [DataSample().set_gt_label(i) for i in range(4)]
    data = {"inputs": images, "data_samples": samples}
    losses = classifier.train_step(data, optimizer)
    assert 1.0 < losses["loss"] < 6.0  # log(10) is 2.3
    with torch.no_grad():
        result = classifier.eval().test_step({"inputs": images, "data_samples": samples})
    scores = torch.stack([sample.pred_score for sample in result])
    torch.testing.assert_close(scores.sum(1), torch.ones(4))
    logits = classifier.backbone(classifier.data_preprocessor(data)["inputs"])
    torch.testing.assert_close(scores, logits.softmax(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_classifiers_have_the_published_parameters(name):
    (path,) = (p for p in EXPERIMENTS if p.stem.startswith(f"{name}_imagenet"))
    backbone = {k: v for k, v in load(path).model.backbone.items() if k not in ("type", "norm_cfg")}
    kinds = {"rmt": RMT, "deepvit": DeepViT, "eamlp": EAMLP, "lambda": LambdaResNet}
    with torch.device("meta"):
        model = kinds[name.split("_")[0]](**backbone)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    assert millions == pytest.approx(PARAMETERS[name], abs=0.006)


def test_converted_weights_of_a_published_classifier_are_the_models(tmp_path):
    """What `convert rmt --classifier` writes, loaded as `tools/test.py` loads a checkpoint."""
    fixture = Fixture("rmt_classifier_small")
    path = tmp_path / "rmt_small.pth"
    torch.save(convert_official("rmt", fixture.state_dict, classifier=True), path)
    config = load(CONFIGS / "classification/rmt_small_imagenet_300e.py")
    classifier = build(config.model.to_dict()).eval()
    with safe_loading(), require_coverage(whole=True):
        load_checkpoint(classifier, str(path), map_location="cpu")
    with torch.no_grad():
        logits = classifier(fixture.inputs["img"], mode="tensor")
    assert_parity(logits, fixture.outputs["logits"])


@pytest.mark.parametrize("kind", ["RMT", "LambdaResNet", "DeepViT", "EAMLP"])
def test_without_num_classes_mmpretrains_own_head_takes_the_last_map(kind):
    from mmpretrain.structures import DataSample

    widths = {"RMT": 32, "LambdaResNet": 2048, "DeepViT": 24, "EAMLP": 32}
    model = {
        "type": "ImageClassifier",
        "backbone": {"type": kind, **ARCHS[kind]},
        "neck": {"type": "GlobalAveragePooling"},
        "head": {"type": "LinearClsHead", "num_classes": 10, "in_channels": widths[kind]},
    }
    classifier = build(model).train()
    samples = [DataSample().set_gt_label(i) for i in range(2)]
    losses = classifier(torch.randn(2, 3, 67, 75), samples, mode="loss")
    losses["loss"].backward()
    assert next(classifier.backbone.parameters()).grad is not None
