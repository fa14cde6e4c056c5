"""LambdaResNet: the shared tester, sizes and costs of the paper's tables, and its variants."""

from itertools import pairwise

import pytest
import torch
from mmengine.analysis import get_model_complexity_info
from mmseg.registry import MODELS

from mmseg_ext.backbones import LambdaResNet
from mmseg_ext.layers import LambdaLayer
from tests.backbones.base import BackboneTester
from tests.models import assert_same, randomise


class TestLambdaResNet(BackboneTester):
    config = {
        "type": "LambdaResNet",
        "depth": (1, 2, 1, 1),
        "lambda_stages": (1, 2, 3),
        "placement": ((), (1,), (0,), (0,)),
        "receptive_field": 5,
        "se_ratio": 1 / 16,
        "position_bias": True,
    }
    channels = (256, 512, 1024, 2048)
    strides = (4, 8, 16, 32)
    deeper = {"depth": (1, 2, 2, 1)}
    # a stage of a convolutional block, and one of a lambda block
    traced = {"depth": (1, 1, 1, 1), "placement": ((), (0,), (0,), (0,)), "out_indices": (0, 1)}


STRIDE_8 = {"strides": (1, 2, 1, 1), "dilations": (1, 1, 2, 4), "contract_dilation": True}


class TestDilated(BackboneTester):
    config = {"type": "LambdaResNet", "depth": (1, 1, 2, 2), "receptive_field": 7, **STRIDE_8}
    config |= {"stem": "deep", "avg_down": True, "share_embeddings": "stage"}
    channels = (256, 512, 1024, 2048)
    strides = (4, 8, 8, 8)
    deeper = {"depth": (1, 1, 2, 3)}
    traced = {"lambda_stages": (2,), "out_indices": (2,)}
    size = (32, 48)
    # As above.
    test_weights_of_another_depth_or_shape = test_compiles_once_for_all_sizes = None


def lambda_layers(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, LambdaLayer)}


def test_depths_and_hybrid_placement():
    """A name counts the convolutions, or nearly; lambda layers are evenly spaced in c4."""
    for depth in (26, 50, 101, 152, 200, 270, 350, 420):
        placement = "all" if depth == 26 else "hybrid"
        with torch.device("meta"):
            model = LambdaResNet(depth, placement=placement, receptive_field=7)
        stages = (model.layer1, model.layer2, model.layer3, model.layer4)
        assert 3 * sum(map(len, stages)) + 2 == {270: 272, 420: 419}.get(depth, depth)
        if depth == 26:
            continue
        placed = [
            [i for i, block in enumerate(stage) if isinstance(block.conv2, LambdaLayer)]
            for stage in stages
        ]
        assert placed[:2] == [[], []] and placed[3] == [*range(len(model.layer4))]
        assert len({b - a for a, b in pairwise((0, *placed[2]))}) == 1
        assert depth != 101 or placed[2] == [6, 12, 18]
    with torch.device("meta"):
        only = LambdaResNet(50, lambda_stages=(2,), placement="hybrid")
    assert [*lambda_layers(only)] == ["layer3.3.conv2"]


def test_dilation_keeps_the_finer_map_of_stride_32():
    """Dilated stages compute, at the kept positions, what the strided ones do (torchvision)."""
    design = {"depth": (1, 1, 2, 2), "lambda_stages": ()}
    strided = randomise(LambdaResNet(**design)).eval()
    dilated = LambdaResNet(**design, **STRIDE_8).eval()
    dilated.load_state_dict(strided.state_dict())
    x = torch.randn(1, 3, 64, 96)
    assert_same(dilated(x)[3][:, :, ::4, ::4], strided(x)[3])
    with_lambda = LambdaResNet(depth=(1, 1, 2, 2), **STRIDE_8)
    layers = lambda_layers(with_lambda)
    assert [layer.dilation for layer in layers.values()] == [1, 1, 1, 2, 2, 4]
    pooled = [n for n, layer in layers.items() if isinstance(layer.pool, torch.nn.AvgPool2d)]
    assert pooled == ["layer2.0.conv2"]


def test_global_context():
    model = LambdaResNet(depth=(1, 1, 2, 1), receptive_field=None, resolution=(64, 96)).eval()
    sizes = [layer.resolution for layer in lambda_layers(model).values()]
    assert sizes == [(16, 24), (16, 24), (8, 12), (4, 6), (4, 6)]
    caffe = LambdaResNet((1, 1, 1, 1), receptive_field=None, resolution=(64, 96), style="caffe")
    sizes = [layer.resolution for layer in lambda_layers(caffe).values()]
    assert sizes == [(16, 24), (8, 12), (4, 6), (2, 3)]  # after the strided 1x1 convolution
    assert model(torch.randn(1, 3, 64, 96))[3].shape == (1, 2048, 2, 3)
    assert model(torch.randn(1, 3, 33, 70))[3].shape == (1, 2048, 2, 3)


def test_settings_of_blocks():
    """Branches start at zero; shared embeddings are a table per stage; `norm_eval` is mmseg's."""
    model = LambdaResNet(depth=(2, 1, 1, 2), norm_eval=True, share_embeddings="stage").train()
    assert model.layer2.training and not model.layer2[0].conv2.norm_q.training
    block, x = model.layer1[1].eval(), torch.rand(1, 256, 6, 6)
    assert torch.equal(block(x), x)
    queries = block.conv2.qkv.weight[: block.conv2.channels[0]]
    assert queries.std().item() == pytest.approx((64 * 16) ** -0.5, rel=0.1)  # the paper's
    owners = [k for k in model.state_dict() if k.endswith("position.weight")]
    assert owners == [f"layer{i}.0.conv2.position.weight" for i in range(1, 5)]
    layers = lambda_layers(model)
    assert layers["layer4.1.conv2"].embeddings is layers["layer4.0.conv2"].position
    assert layers["layer4.0.conv2"].embeddings is not layers["layer1.0.conv2"].embeddings


def test_squeeze_excitation_multiplies_by_the_gates():
    layer = LambdaResNet((1, 1, 1, 1), lambda_stages=(), se_ratio=1 / 16).layer1[0].se.double()
    x = torch.randn(2, 256, 3, 5, dtype=torch.float64)
    means = x.mean((2, 3))  # (B, C)
    hidden = (means @ layer.fc1.weight.flatten(1).T + layer.fc1.bias).clamp(min=0)
    logits = hidden @ layer.fc2.weight.flatten(1).T + layer.fc2.bias
    assert_same(layer(x), x / (1 + torch.exp(-logits))[..., None, None], rtol=1e-12)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"depth": 34}, "depth=34"),
        ({"lambda_stages": (4,)}, r"lambda_stages=\(4,\)"),
        ({"placement": "some"}, "placement='some'"),
        ({"placement": ((), (), (6,), ())}, r"placement of stage 2: \(6,\)"),
        ({"depth": 26, "placement": "hybrid"}, "placement='hybrid': .* 26"),
        ({"strides": (1, 2)}, r"strides=\(1, 2\)"),
    ],
)
def test_bad_arguments(changes, message):
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        LambdaResNet(**changes)


STOCK = {"depth": 50, "num_stages": 3, "out_indices": (0, 1, 2), "strides": (1, 2, 1)}
STOCK |= {"dilations": (1, 1, 2), "contract_dilation": True, "norm_eval": False}
BN = {"norm_cfg": {"type": "BN", "requires_grad": True}}
RESNETS = {
    "pytorch": ("ResNet", {**STOCK, **BN, "style": "pytorch"}, {}),
    "caffe": ("ResNet", {**STOCK, **BN, "style": "caffe"}, {}),
    "deep": ("ResNetV1d", {"depth": 50, **BN}, {"stem": "deep", "avg_down": True}),
}


@pytest.mark.parametrize(("kind", "stock", "changes"), RESNETS.values(), ids=RESNETS)
def test_without_lambda_layers_it_is_mmsegs_resnet(kind, stock, changes):
    """The same config and names, so the state dict itself moves over."""
    theirs = randomise(MODELS.build({"type": kind, **stock}))
    theirs.eval()  # returns None
    ours = LambdaResNet(**stock, **changes, lambda_stages=()).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, 3, 67, 64)
    assert_same(ours(x), theirs(x), rtol=1e-6)
    if kind == "ResNet":
        assert ours.feature_info.reduction() == [4, 8, 8]
        full = LambdaResNet(**stock, receptive_field=7).eval()
        assert [tuple(t.shape) for t in full(x)] == [tuple(t.shape) for t in theirs(x)]
        strided, caffe = full.layer2[0], stock["style"] == "caffe"
        assert (strided.conv1.stride == (2, 2)) == caffe
        assert isinstance(strided.conv2.pool, torch.nn.Identity) == caffe


def test_get_flops_traces_the_fourier_form():
    model = LambdaResNet(depth=(1, 1, 1, 1), out_indices=(0,)).eval()
    counted = get_model_complexity_info(model, inputs=torch.randn(1, 3, 192, 200))
    assert counted["flops"] > 1e8
