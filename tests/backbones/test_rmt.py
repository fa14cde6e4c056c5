"""RMT: the published features, parameters and multiply-adds, and what every backbone must pass."""

import pytest
import torch

from benchmarks.reference.manhattan_attention import PlainRMT
from mmseg_ext.backbones.rmt import ARCHS, RMT
from mmseg_ext.checkpoint import convert_official
from mmseg_ext.cost.measure import count_multiply_adds
from tests.backbones.base import BackboneTester
from tests.models import assert_exports_and_compiles, randomise
from tests.parity import Fixture, assert_parity, gradient_difference

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

    def test_export_and_compile(self):
        """On two stages, one of either kind: tracing takes seconds for each block."""
        assert_exports_and_compiles(randomise(self.build(out_indices=(0, 1))), (self.images(1),))


@pytest.mark.parametrize("arch", ["tiny", "small"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parity_of_features(arch, dtype):
    fixture = Fixture(f"rmt_{arch}_features")
    model = RMT(arch).eval()
    model.load_state_dict(convert_official("rmt", fixture.state_dict))
    with torch.no_grad():
        features = model.to(dtype)(fixture.inputs["img"].to(dtype))
    for i, feature in enumerate(features):
        assert_parity(feature, fixture.outputs[f"stage{i}"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parity_of_the_classifier(dtype):
    fixture = Fixture("rmt_classifier_small")
    model = RMT("small", num_classes=1000).eval()
    model.load_state_dict(convert_official("rmt", fixture.state_dict, classifier=True))
    with torch.no_grad():
        assert_parity(model.to(dtype)(fixture.inputs["img"].to(dtype)), fixture.outputs["logits"])


# Parameters with the classifier of 1000 classes, the paper's FLOPs of the classifier at 224x224,
# and the backbone's multiply-adds at 512x512 (G, every product counted).
PUBLISHED = {
    "tiny": (14_334_216, 2.5, 17.975),
    "small": (26_967_240, 4.5, 26.580),
    "base": (54_154_896, 9.7, 57.344),
    "large": (95_464_864, 18.2, 106.181),
}


def norm_operations(model: torch.nn.Module, x: torch.Tensor) -> int:
    """What fvcore adds for norms: 5 per element of a layer norm, 2 of a batch norm in eval."""
    total = 0

    def count(module, inputs, output):
        nonlocal total
        total += output.numel() * (5 if isinstance(module, torch.nn.LayerNorm) else 2)

    for module in model.modules():
        if isinstance(module, (torch.nn.LayerNorm, torch.nn.BatchNorm2d)):
            module.register_forward_hook(count)
    model(x)
    return total


@pytest.mark.parametrize("arch", PUBLISHED)
def test_parameters_and_multiply_adds(arch):
    """The classifier's FLOPs are the paper's in its convention: with norms, in units of 2^30."""
    parameters, flops, backbone = PUBLISHED[arch]
    with torch.device("meta"):
        classifier, model = RMT(arch, num_classes=1000).eval(), RMT(arch).eval()
        image, crop = torch.empty(1, 3, 224, 224), torch.empty(1, 3, 512, 512)
    assert sum(p.numel() for p in classifier.parameters()) == parameters
    total = count_multiply_adds(classifier, image).all + norm_operations(classifier, image)
    assert total / 2**30 == pytest.approx(flops, abs=0.05)
    assert count_multiply_adds(model, crop).all / 1e9 == pytest.approx(backbone, abs=5e-4)


def test_archs_differ_as_published():
    assert ARCHS["tiny"]["decomposed"] == (True, True, False, False)
    for name in ("small", "base", "large"):
        assert ARCHS[name]["decomposed"] == (True, True, True, False)
    with torch.device("meta"):
        model = RMT("base")
    assert [b[0].gamma1 is not None for b in model.stages] == [False, False, True, True]
    rates = [b.drop_path.drop_prob for blocks in model.stages for b in blocks]
    assert rates == pytest.approx([0.4 * i / 44 for i in range(45)])


def test_init():
    model = RMT(SHRUNK)
    linear = [m.weight.flatten() for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert torch.cat(linear).std().item() == pytest.approx(0.02, rel=0.03)
    assert model.stages[2][0].gamma1.unique().item() == pytest.approx(1e-6)


def test_equals_the_plain_formulation():
    """Features and gradients of a whole network, in training mode."""
    arch = {**SHRUNK, "drop_path_rate": 0.0, "layer_scales": (None, None, 0.5, 0.5)}
    model = randomise(RMT(arch)).double().train()
    twin = randomise(RMT(arch)).double().train()
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 96, 130, dtype=torch.float64)
    for ours, theirs in zip(model(x), PlainRMT(twin)(x), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-9)
        weights = torch.randn_like(ours)
        (ours * weights).sum().backward(retain_graph=True)
        (theirs * weights).sum().backward(retain_graph=True)
    assert gradient_difference(model, twin) <= 1e-8


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


@pytest.mark.parametrize(("arch", "other"), [("tiny", "small"), ("base", "large")])
def test_weights_of_another_arch_are_named(arch, other):
    with torch.device("meta"):
        model, theirs = RMT(arch), RMT(other).state_dict()
    message = rf"in the backbone; it looks like arch '{other}', the backbone is '{arch}'$"
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(theirs, strict=False)


def test_published_names_are_refused():
    with torch.device("meta"):
        model = RMT("small")
    with pytest.raises(ValueError, match=r"patch_embed\..*published code.*rmt2mmseg\.py"):
        model.load_state_dict(Fixture("rmt_small_features").state_dict, strict=False)


def test_bad_lists():
    with pytest.raises(ValueError, match="lists of different lengths"):
        RMT({**SHRUNK, "depths": (1, 1)})
