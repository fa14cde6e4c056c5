"""Published LambdaResNets, converted; the tests of the backbone compare their outputs."""

import pytest
import torch

from mmseg_ext.backbones.lambda_resnet import ARCHS, LambdaResNet
from mmseg_ext.checkpoint import convert_official
from tests.parity import Fixture


def test_the_blocks_tell_timm_50ts():
    """Its names are those of timm_26t, whose weights the tests of the backbones convert."""
    assert ARCHS["timm_50ts"]["placement"] == ((), (3,), (1, 3, 5), (1,))
    with torch.device("meta"):
        assert isinstance(LambdaResNet(arch="timm_50ts").stem[2], torch.nn.SiLU)
    published = Fixture("timm_lambda_resnet26t").state_dict
    blocks = {k.replace("stages.2.1.", "stages.2.5."): v for k, v in published.items()}
    with pytest.raises(ValueError, match=r"missing keys: layer1\.2\."):
        convert_official("timm_lambda_resnet", published | blocks)


def test_embeddings_without_bias():
    """The paper has no bias; a file without one fits a model without one."""
    published = Fixture("lambda_resnet50").state_dict
    without = {k: v for k, v in published.items() if "lambda_conv.bias" not in k}
    converted = convert_official("lambda_resnet", without)
    assert len(converted) == len(without) - 2  # the classifier
    assert len(convert_official("lambda_resnet", published)) == len(published) - 2
    with torch.device("meta"):
        LambdaResNet().load_state_dict(converted, assign=True)
