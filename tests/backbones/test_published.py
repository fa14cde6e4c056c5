"""Outputs, parameters and multiply-adds of the published backbones."""

import pytest
import torch
from mmseg.registry import MODELS

from mmseg_ext.cost.model_cost import count_multiply_adds  # only a command is public
from mmseg_ext.doctor.fixtures import BACKBONES
from tests.parity import assert_case_parity

# Classifiers of 1000 classes: parameters (an integer is exact, else in millions) and multiply-adds
# in billions at the published input size. DeepViT, EAMLP: the published code's; DeepViT's paper
# prints 24.5, 36.3, 48.1, 27 and, for 'l', 55 million. LambdaResNet: the paper's ablations.
# EfficientNet-Lite: the published files, whose tables print 4.7, 5.4 and 6.1 million.
DEEPVIT, EAMLP, LAMBDA = ({"type": name} for name in ("DeepViT", "EAMLP", "LambdaResNet"))
LITE = {"type": "EfficientNetLite"}
COSTS = [
    (DEEPVIT | {"arch": "16b"}, 24_426_664, 5.27),
    (DEEPVIT | {"arch": "24b"}, 36_261_448, 7.88),
    (DEEPVIT | {"arch": "32b"}, 48_096_232, 10.49),
    (DEEPVIT | {"arch": "s"}, 27_312_632, 6.36),
    (DEEPVIT | {"arch": "l"}, 58_883_708, 13.15),
    (EAMLP | {"arch": "7"}, 6_096_206, None),
    (EAMLP | {"arch": "10"}, 8_489_678, None),
    (EAMLP | {"arch": "12"}, 10_085_326, None),
    (EAMLP | {"arch": "14"}, 29_801_422, 6.45),
    (EAMLP | {"arch": "19"}, 54_470_798, 11.60),
    (EAMLP | {"arch": "24"}, 89_355_726, None),
    (LAMBDA | {"key_depth": 2}, 14.61, 2.85),
    (LAMBDA, 14.995592, 6.576),
    (LAMBDA | {"key_depth": 2, "num_heads": 8}, 14.48, 2.57),
    (LAMBDA | {"key_depth": 32, "num_heads": 8}, 15.76, 6.99),
    (LAMBDA | {"intra_depth": 4, "receptive_field": 7}, 16.04, 4.39),
    (LAMBDA | {"key_depth": 8, "num_heads": 8, "intra_depth": 8}, 16.53, None),
    (LAMBDA | {"lambda_stages": ()}, 25.557032, 4.089),
    (LAMBDA | {"lambda_stages": (0,)}, 25.49, None),
    (LAMBDA | {"lambda_stages": (2, 3)}, 15.56, None),
    (LAMBDA | {"depth": 101}, 24.74, None),
    (LAMBDA | {"depth": 152}, 32.81, None),
    (LAMBDA | {"depth": 200}, 35.30, None),
    (LAMBDA | {"lambda_stages": (), "se_ratio": 1 / 16}, 28.1, None),
    (LAMBDA | {"arch": "timm_26t"}, 10_958_272, 3.003),
    (LAMBDA | {"arch": "timm_50ts"}, 21_536_832, 5.037),
    (LITE | {"arch": "0"}, 4_652_008, None),
    (LITE | {"arch": "1"}, 5_416_680, None),
    (LITE | {"arch": "2"}, 6_092_072, None),
]


@pytest.mark.parametrize("name", BACKBONES)
def test_parity_with_published(name):
    assert_case_parity(name)


def rounded(count: int, figure: float, unit: float) -> float:
    return round(count / unit, len(str(figure).split(".")[1]))


@pytest.mark.parametrize(("config", "parameters", "multiply_adds"), COSTS, ids=str)
def test_published_costs(config, parameters, multiply_adds):
    with torch.device("meta"):
        model = MODELS.build(config | {"num_classes": 1000}).eval()
        images = torch.empty(1, *model.default_cfg["input_size"])
    counted = sum(p.numel() for p in model.parameters())
    exact = isinstance(parameters, int)
    assert (counted if exact else rounded(counted, parameters, 1e6)) == parameters
    if multiply_adds is not None:
        counted = count_multiply_adds(model, images).all
        assert rounded(counted, multiply_adds, 1e9) == multiply_adds
