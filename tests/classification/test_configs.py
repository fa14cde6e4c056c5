"""Every config for mmpretrain: one training step and one inference with its widths reduced.

mmpretrain imports torchvision, whose builds each fit one torch. Where it does not import, an empty
module stands in its place: what a classifier's step runs is none of it.
"""

import importlib.util
import sys
from unittest.mock import MagicMock

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

from tests.configs import CONFIGS, load
from tests.models import NARROW_LAMBDA, NARROW_RMT

if importlib.util.find_spec("mmpretrain") is None:
    pytest.skip("mmpretrain is not installed", allow_module_level=True)

EXPERIMENTS = sorted((CONFIGS / "classification").glob("*.py"))
ARCHS = {
    "RMT": {"arch": NARROW_RMT},
    "LambdaResNet": NARROW_LAMBDA,
    "DeepViT": {"arch": {"embed_dims": 24, "depth": 4, "num_heads": 2}, "img_size": 64},
    "EAMLP": {"arch": {"embed_dims": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2}},
}


@pytest.fixture(scope="module", autouse=True)
def _mmpretrain():
    names = ("", ".ops", ".ops.boxes", ".transforms")
    names += (".transforms.functional", ".transforms.transforms")
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torchvision") is None:
            for name in names:
                patch.setitem(sys.modules, f"torchvision{name}", MagicMock())
        yield


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
