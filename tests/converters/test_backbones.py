"""Published DeepViTs, EAMLPs and LambdaResNets; other tests compare their outputs."""

import pytest
import torch

from mmseg_ext.backbones import EAMLP, DeepViT, LambdaResNet
from mmseg_ext.checkpoint import convert_official
from tests.messages import raises_message
from tests.parity import Fixture


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "re_attention"), [("24b", True), ("32b", True), ("s", True), ("l", True), ("s", False)]
)
def test_deepvit_architecture_is_inferred(arch, re_attention):
    with torch.device("meta"):
        model = DeepViT(arch=arch, num_classes=10, re_attention=re_attention)
        backbone = DeepViT(arch=arch, re_attention=re_attention)
    weights = convert_official("deepvit", model.state_dict(), classifier=True)
    assert weights.keys() == model.state_dict().keys()
    weights = convert_official("deepvit", model.state_dict())
    assert weights.keys() == backbone.state_dict().keys()


@pytest.fixture(scope="module")
def model() -> EAMLP:
    """An EAMLP-7 for 384x384, whose state dict is a published one's without its `pos_embed`."""
    return EAMLP(arch="7", img_size=384, num_classes=1000)


@pytest.mark.parametrize("drift", [None, 0, 1e-4])
@pytest.mark.parametrize("classifier", [False, True])
def test_every_form_of_eamlp(model, drift, classifier):
    """An exponential moving average in float32 moves the constant positions by about 1e-4."""
    eamlp = model.state_dict()
    state_dict = dict(eamlp)
    if drift is not None:
        state_dict["pos_embed"] = model.pos_embed + drift
    converted = convert_official("eamlp", state_dict, classifier=classifier)
    twin = EAMLP(arch="7", img_size=384, num_classes=1000 if classifier else None)
    twin.load_state_dict(converted, strict=True)
    assert ("head.weight" in converted) == classifier
    assert all(torch.equal(value, eamlp[key]) for key, value in converted.items())


def test_other_positions_are_refused(model):
    deepvit = Fixture("deepvit_re_attn_16b").state_dict
    with raises_message(ValueError, 11, where="pos_embed: "):
        convert_official("deepvit", {**deepvit, "pos_embed": torch.zeros(1, 12, 24)})
    learned = model.pos_embed.clone()
    learned[0, 100, 3] += 0.01
    with pytest.raises(ValueError, match=r"pos_embed: .*0\.01"):
        convert_official("eamlp", {**model.state_dict(), "pos_embed": learned})


def test_the_blocks_tell_timm_50ts():
    """It has the names of timm_26t, whose weights the tests of the backbones convert."""
    assert LambdaResNet.arch_settings["timm_50ts"]["placement"] == ((), (3,), (1, 3, 5), (1,))
    with torch.device("meta"):
        assert isinstance(LambdaResNet(arch="timm_50ts").stem[2], torch.nn.SiLU)
    published = Fixture("timm_lambda_resnet26t").state_dict
    convert_official("timm_lambda_resnet", published)
    blocks = {k.replace("stages.2.1.", "stages.2.5."): v for k, v in published.items()}
    with raises_message(ValueError, "layer1.2.conv1.weight"):
        convert_official("timm_lambda_resnet", published | blocks)


def test_the_number_of_blocks_tells_efficientnet_lite():
    """Lite1 and Lite2 have 21 blocks of other widths."""
    published = Fixture("efficientnet_lite0").state_dict
    fewer = {k: v for k, v in published.items() if not k.startswith("_blocks.15.")}
    with raises_message(ValueError, 15, todo="16 (arch '0'), 21 (arch '1')"):
        convert_official("efficientnet_lite", fewer)


def test_lambda_embeddings_without_bias():
    """The paper has no bias; a file without one fits a model without one."""
    published = Fixture("lambda_resnet50").state_dict
    without = {k: v for k, v in published.items() if "lambda_conv.bias" not in k}
    converted = convert_official("lambda_resnet", without)
    assert len(converted) == len(without) - 2  # the classifier
    assert len(convert_official("lambda_resnet", published)) == len(published) - 2
    with torch.device("meta"):
        LambdaResNet().load_state_dict(converted, assign=True)
