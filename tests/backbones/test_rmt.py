"""RMT: the published features, parameters and multiply-adds, and what every backbone must pass."""

from itertools import permutations

import pytest
import torch
from mmengine.runner.checkpoint import load_state_dict
from mmseg.registry import MODELS

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


def test_unused_stages_are_not_built():
    model = RMT(SHRUNK, out_indices=(0, 1))
    assert len(model.stages) == 2 and len(model.downsamples) == 1


def test_a_single_out_index():
    with torch.device("meta"):
        assert RMT(SHRUNK, out_indices=2).out_indices == (2,)


def test_order_of_out_indices():
    model = RMT(SHRUNK, out_indices=(2, 0)).eval()
    with torch.no_grad():
        assert [t.shape[1] for t in model(torch.randn(1, 3, 64, 64))] == [32, 8]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "huge"}, r"arch must be one of tiny, small, base, large or a dict, not 'huge'"),
        ({"arch": 5}, r"or a dict, not 5"),
        ({"arch": None}, r"or a dict, not None"),
        ({"arch": {"depths": (1,)}}, r"must have the keys"),
        ({"arch": {**SHRUNK, "depths": (1, 1)}}, r"lists of different lengths"),
        ({"frozen_stages": 5}, r"frozen_stages=5"),
        ({"out_indices": ()}, r"out_indices=\(\)"),
        ({"out_indices": 4}, r"out_indices=\(4,\)"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        MODELS.build({"type": "RMT", **changes})


def load_as_torch(model: RMT, state: dict) -> None:
    model.load_state_dict(state, strict=False)


def load_into_segmentor(model: RMT, state: dict) -> None:
    whole = torch.nn.Module()
    whole.backbone = model
    load_state_dict(whole, {f"backbone.{key}": value for key, value in state.items()})


LOADERS = pytest.mark.parametrize("load", [load_as_torch, load_state_dict, load_into_segmentor])


@pytest.fixture(scope="module")
def empty_backbones() -> dict[str, RMT]:
    with torch.device("meta"):
        return {arch: RMT(arch) for arch in ARCHS}


@LOADERS
@pytest.mark.parametrize(("arch", "other"), permutations(ARCHS, 2))
def test_checkpoint_of_another_arch(arch, other, load, empty_backbones):
    same_widths = {arch, other} == {"tiny", "small"}
    entry = r"stages\.0\.0\.ffn\.fc1\.weight" if same_widths else r"stem\.0\.weight"
    message = rf"{entry} does not match: .* looks like arch '{other}', the backbone is '{arch}'$"
    with pytest.raises(ValueError, match=message):
        load(empty_backbones[arch], empty_backbones[other].state_dict())


def test_checkpoint_with_more_blocks():
    deeper = {**SHRUNK, "depths": (1, 1, 2, 1)}
    with pytest.raises(ValueError, match=r"stages\.2\.1\..* is none of tiny, small, base, large"):
        RMT(SHRUNK).load_state_dict(RMT(deeper).state_dict(), strict=False)


@LOADERS
def test_checkpoint_in_published_names(load, empty_backbones):
    with pytest.raises(ValueError, match=r"patch_embed\..*rmt2mmseg\.py"):
        load(empty_backbones["small"], Fixture("rmt_small_features").state_dict)


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        (
            {"num_classes": 1000},
            {"num_classes": 10},
            r"classifier\.head\.weight .*\(1000, 1024\) in the checkpoint, \(10, 1024\) in the "
            r"backbone; num_classes is 1000 there, 10 here",
        ),
        (
            {"in_channels": 4, "out_indices": (0, 1)},
            {},
            r"stem\.0\.weight .*\(4, 4, 3, 3\) .*; in_channels is 4 there, 3 here",
        ),
        (
            {"arch": {**SHRUNK, "ffn_ratios": (2, 4, 2, 2)}},
            {},
            r"stages\.1\.0\.ffn\.fc1\.weight .*\(64, 16\) in the .*, \(32, 16\) in the backbone$",
        ),
    ],
)
def test_other_shapes_in_the_same_arch(theirs, ours, message):
    """The arch is not to blame: depths and widths are the same."""
    with torch.device("meta"):
        state = RMT(**{"arch": SHRUNK, **theirs}).state_dict()
        model = RMT(SHRUNK, **ours)
    with pytest.raises(ValueError, match=message) as error:
        model.load_state_dict(state, strict=False)
    assert "arch" not in str(error.value)
