"""RMT: the published features, parameters and multiply-adds, and what every backbone must pass."""

import pytest
import torch

from benchmarks.reference.manhattan_attention import PlainRMT
from mmseg_ext.backbones.rmt import RMT
from mmseg_ext.cost.multiply_adds import count_multiply_adds
from tests.backbones.base import BackboneTester
from tests.models import assert_compiles_once, randomise
from tests.parity import Fixture, assert_same_function

SHRUNK = {
    "depths": (1, 1, 1, 1),
    "embed_dims": (8, 16, 32, 48),
    "num_heads": (2, 2, 4, 4),
    "ffn_ratios": (2, 2, 2, 2),
    "decay_ranges": (4, 4, 6, 6),
    "decomposed": (True, False, True, False),
    "layer_scales": (None, None, 1e-6, 1e-6),
    "drop_path_rate": 0.1,
}


class TestRMT(BackboneTester):
    config = {"type": "RMT", "arch": SHRUNK}
    channels = (8, 16, 32, 48)
    strides = (4, 8, 16, 32)
    deeper = {"arch": {**SHRUNK, "depths": (1, 1, 2, 1)}}
    traced = {"out_indices": (0, 1)}  # one stage of either kind

    @pytest.mark.slow
    @pytest.mark.xfail(
        torch.__version__.startswith("2.13."),
        run=False,
        reason="torch 2.13 compares strides by a division: pytorch/pytorch#188422",
    )
    def test_compiles_once_on_inductor(self):
        model = randomise(self.build(out_indices=(0,)))
        inputs = [(self.inputs(2, extra),) for extra in ((0, 0), (5, 7))]
        assert_compiles_once(model, inputs, False, "inductor")


# Parameters with the classifier of 1000 classes, the paper's FLOPs of the classifier at 224x224,
# and the backbone's multiply-adds at 512x512 (G, every product counted).
PUBLISHED = {
    "tiny": (14_334_216, 2.5, 17.975),
    "small": (26_967_240, 4.5, 26.580),
    "base": (54_154_896, 9.7, 57.344),
    "large": (95_464_864, 18.2, 106.181),
}


def count_with_norms(model: torch.nn.Module, x: torch.Tensor) -> int:
    """Count as fvcore: 5 for each element of a layer norm, 2 for one of a batch norm in eval."""
    norms = 0

    def count(module, inputs, output):
        nonlocal norms
        norms += output.numel() * (5 if isinstance(module, torch.nn.LayerNorm) else 2)

    for module in model.modules():
        if isinstance(module, (torch.nn.LayerNorm, torch.nn.BatchNorm2d)):
            module.register_forward_hook(count)
    return count_multiply_adds(model, x).all + norms


@pytest.mark.parametrize("arch", PUBLISHED)
def test_parameters_and_multiply_adds(arch):
    """The classifier's FLOPs are the paper's in its convention: with norms, in units of 2^30."""
    parameters, flops, backbone = PUBLISHED[arch]
    with torch.device("meta"):
        classifier, model = RMT(arch, num_classes=1000).eval(), RMT(arch).eval()
        image, crop = torch.empty(1, 3, 224, 224), torch.empty(1, 3, 512, 512)
    assert sum(p.numel() for p in classifier.parameters()) == parameters
    assert count_with_norms(classifier, image) / 2**30 == pytest.approx(flops, abs=0.05)
    assert count_multiply_adds(model, crop).all / 1e9 == pytest.approx(backbone, abs=5e-4)


# The paper's table of variants and the published code: blocks, widths, heads, feed-forward ratios,
# decay ranges, which stages attend along the axes, layer scale of the last two stages, drop path.
VARIANTS = {
    "tiny": ("2 2 8 2", "64 128 256 512", "4 4 8 16", "3 3 3 3", "4 4 6 6", "1100", None, 0.1),
    "small": ("3 4 18 4", "64 128 256 512", "4 4 8 16", "4 4 3 3", "4 4 6 6", "1110", None, 0.15),
    "base": ("4 8 25 8", "80 160 320 512", "5 5 10 16", "4 4 3 3", "5 5 6 6", "1110", 1e-6, 0.4),
    "large": ("4 8 25 8", "112 224 448 640", "7 7 14 20", "4 4 3 3", "6 6 6 6", "1110", 1e-6, 0.5),
}


@pytest.mark.parametrize("arch", VARIANTS)
def test_published_settings(arch):
    """Read off the modules of the built network."""
    depths, widths, heads, ratios, ranges, axes, scale, rate = (
        tuple(map(int, v.split())) if isinstance(v, str) and " " in v else v for v in VARIANTS[arch]
    )
    model = RMT(arch)  # not on the meta device, where layer scales have no value
    blocks = [block for stage in model.stages for block in stage]
    assert tuple(len(stage) for stage in model.stages) == depths
    assert tuple(model.feature_info.channels()) == widths
    first = [stage[0] for stage in model.stages]
    assert tuple(block.attn.num_heads for block in first) == heads
    assert tuple(b.ffn.fc1.out_features / b.ffn.fc1.in_features for b in first) == ratios
    assert "".join(str(int(block.attn.decomposed)) for block in first) == axes
    assert [b.drop_path.drop_prob for b in blocks] == pytest.approx(
        [rate * i / (len(blocks) - 1) for i in range(len(blocks))]
    )
    for i, stage in enumerate(model.stages):
        for block in stage:
            assert (block.attn.decay_start, block.attn.decay_range) == (2, ranges[i])
            assert (block.gamma1 is None) == (scale is None or i < 2)
            if block.gamma1 is not None:
                values = torch.cat((block.gamma1, block.gamma2)).unique()
                assert values.tolist() == pytest.approx([scale])


def test_equals_the_plain_formulation():
    """Features and gradients of a whole network, in training mode."""
    arch = {**SHRUNK, "drop_path_rate": 0.0, "layer_scales": (None, None, 0.5, 0.5)}
    x = torch.randn(2, 3, 96, 130, dtype=torch.float64)
    assert_same_function(randomise(RMT(arch)).double().train(), PlainRMT, x, 1e-8)


@pytest.mark.parametrize("ablation", [{"decay": None}, {"lce": False}, {"cpe": False}])
def test_ablations(ablation):
    model = RMT(SHRUNK, **ablation).eval()
    full = RMT(SHRUNK).eval()
    missing = set(full.state_dict()) - set(model.state_dict())
    assert {key.split(".")[-2] for key in missing} == {k for k in ("lce", "cpe") if k in ablation}
    full_state = {k: v for k, v in full.state_dict().items() if k not in missing}
    model.load_state_dict(full_state)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert (model(x)[0] - full(x)[0]).abs().max() > 1e-4


def test_frozen_stages_freeze_the_downsampling_before_them():
    model = RMT(SHRUNK, frozen_stages=2).train()
    parts = {
        name: {p.requires_grad for p in model.get_submodule(name).parameters()}
        for name in ("stem", "stages.0", "stages.1", "stages.2", "downsamples.0", "downsamples.1")
    }
    assert {n for n, grads in parts.items() if grads == {True}} == {"stages.2", "downsamples.1"}
    assert {True, False} not in parts.values()
    assert not model.downsamples[0].training and model.downsamples[1].training


def test_weights_of_another_arch_are_named():
    arch, other = "tiny", "small"
    with torch.device("meta"):
        model, theirs = RMT(arch), RMT(other).state_dict()
    message = rf"in the backbone; the checkpoint is arch '{other}', the backbone '{arch}'$"
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(theirs, strict=False)


def test_published_names_are_refused():
    with torch.device("meta"):
        model = RMT("small")
    with pytest.raises(ValueError, match=r"patch_embed\..*mmseg-ext convert rmt "):
        model.load_state_dict(Fixture("rmt_small_features").state_dict, strict=False)


def test_bad_lists():
    with pytest.raises(ValueError, match="lists of different lengths"):
        RMT({**SHRUNK, "depths": (1, 1)})
