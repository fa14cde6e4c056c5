"""RMT: the published features, parameters and multiply-adds, and what every backbone must pass."""

import copy

import pytest
import torch
from mmcv.cnn.bricks import DropPath
from torch import nn

from benchmarks.reference.manhattan_attention import PlainRMT
from mmseg_ext.backbones import RMT
from mmseg_ext.cost.model_cost import count_multiply_adds  # only a command is public
from tests.backbones.base import BackboneTester
from tests.messages import raises_message
from tests.models import NARROW_RMT, OnGPU, Operators, randomise
from tests.parity import Fixture, assert_same_function

SHRUNK = NARROW_RMT | {"embed_dims": (8, 16, 32, 48), "num_heads": (2, 2, 4, 4)}
SHRUNK |= {"decomposed": (True, False, True, False), "layer_scales": (None, None, 1e-6, 1e-6)}


class TestRMT(BackboneTester):
    config = {"type": "RMT", "arch": SHRUNK}
    channels = (8, 16, 32, 48)
    strides = (4, 8, 16, 32)
    deeper = {"arch": {**SHRUNK, "depths": (1, 1, 2, 1)}}
    traced = {"out_indices": (0, 1)}  # one stage of either kind


# The paper's table and the published code: parameters with the classifier of 1000 classes, FLOPs at
# 224x224; of each stage the heads, decay range and decomposition; layer scale of the last two
# stages, and stochastic depth.
PUBLISHED = {
    "tiny": (14_334_216, 2.5, (4, 4, 8, 16), (4, 4, 6, 6), (1, 1, 0, 0), None, 0.1),
    "small": (26_967_240, 4.5, (4, 4, 8, 16), (4, 4, 6, 6), (1, 1, 1, 0), None, 0.15),
    "base": (54_154_896, 9.7, (5, 5, 10, 16), (5, 5, 6, 6), (1, 1, 1, 0), 1e-6, 0.4),
    "large": (95_464_864, 18.2, (7, 7, 14, 20), (6, 6, 6, 6), (1, 1, 1, 0), 1e-6, 0.5),
}


@pytest.mark.parametrize("arch", PUBLISHED)
def test_published_parameters_and_settings(arch):
    """FLOPs in the paper's convention, fvcore's: with norms, in units of 2^30."""
    parameters, flops, heads, ranges, decomposed, scale, rate = PUBLISHED[arch]
    with torch.device("meta"):
        model = RMT(arch, num_classes=1000).eval()
    assert sum(p.numel() for p in model.parameters()) == parameters
    last = [stage[-1] for stage in model.stages]
    assert tuple(block.attn.num_heads for block in last) == heads
    assert tuple(block.attn.decay_range for block in last) == ranges
    assert tuple(block.attn.decomposed for block in last) == decomposed
    assert last[3].drop_path.drop_prob == rate
    shallow = RMT({**RMT.arch_settings[arch], "depths": (1, 1, 1, 1)})
    for i, (block,) in enumerate(shallow.stages):
        for gamma in (block.gamma1, block.gamma2):
            found = None if gamma is None else gamma.unique().item()
            assert found == (None if i < 2 else pytest.approx(scale))

    norms = []

    def count(norm, inputs, output):
        norms.append(output.numel() * (5 if isinstance(norm, nn.LayerNorm) else 2))

    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)):
            module.register_forward_hook(count)
    counted = count_multiply_adds(model, torch.empty(1, 3, 224, 224, device="meta")).all
    assert (counted + sum(norms)) / 2**30 == pytest.approx(flops, abs=0.05)


def test_equals_the_plain_formulation():
    """Features and gradients of a whole network, in training mode."""
    arch = {**SHRUNK, "drop_path_rate": 0.0, "layer_scales": (None, None, 0.5, 0.5)}
    x = torch.randn(2, 3, 96, 130, dtype=torch.float64)
    assert_same_function(randomise(RMT(arch)).double().train(), PlainRMT, x, 1e-8)


@pytest.mark.parametrize("ablation", [{"decay": None}, {"lce": False}, {"cpe": False}])
def test_ablations(ablation):
    model, full = RMT(SHRUNK, **ablation).eval(), RMT(SHRUNK).eval()
    missing, unexpected = full.load_state_dict(model.state_dict(), strict=False)
    assert {key.split(".")[-2] for key in missing} == {k for k in ("lce", "cpe") if k in ablation}
    assert not unexpected
    x = torch.randn(1, 3, 64, 64)
    assert (model(x)[0] - full(x)[0]).abs().max() > 1e-4


def test_frozen_stages_freeze_the_downsampling_before_them():
    model = RMT(SHRUNK, frozen_stages=2)
    trained = {n for n, p in model.named_parameters() if p.requires_grad and "out_norms" not in n}
    later = ("stages.2", "stages.3", "downsamples.1", "downsamples.2")
    assert trained == {n for n, _ in model.named_parameters() if n.startswith(later)}


def test_weights_and_settings_that_do_not_fit():
    with torch.device("meta"):
        model, theirs = RMT("tiny"), RMT("small").state_dict()
    with raises_message(ValueError, "'small'", "'tiny'", where="stages.0.0."):
        model.load_state_dict(theirs, strict=False)
    with raises_message(ValueError, where="patch_embed.", todo="mmseg-ext convert rmt"):
        model.load_state_dict(Fixture("rmt_small_features").state_dict, strict=False)
    with raises_message(ValueError, "depths", 2, 4, where="arch: ", todo=True):
        RMT({**SHRUNK, "depths": (1, 1)})


def test_blocks_of_a_stage_share_what_depends_on_positions():
    """Of 1,009 operators that are not views, 460 computed the same distances and phases again."""
    model = RMT("tiny").eval()
    with torch.no_grad(), Operators() as operators:
        model(torch.zeros(1, 3, 128, 128))
    assert operators.names["cos"] == 4 and operators.kernels <= 490


class Called(DropPath):
    """A class that the backbone does not know, and therefore calls."""


def step(model: RMT, images: torch.Tensor, half: bool = False) -> list[torch.Tensor]:
    """Return the maps, the gradients, and the next random numbers."""
    model.zero_grad()
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        maps = model(images)
    sum(x.float().cos().sum() for x in maps).backward()
    found = [*maps, *(p.grad for p in model.parameters()), torch.rand(2)]
    return [x.detach().as_subclass(torch.Tensor) for x in found]


DEEP = SHRUNK | {"depths": (2, 2, 2, 2), "drop_path_rate": 0.5}


@pytest.mark.parametrize(("half", "with_cp"), [(False, False), (False, True), (True, False)])
def test_stochastic_depth_is_that_of_mmcv(half, with_cp):
    """Bit by bit, with the same random numbers."""
    model = randomise(RMT(DEEP, with_cp=with_cp)).train()
    called = copy.deepcopy(model)
    for stage in called.stages:
        for block in stage:
            block.drop_path = Called(block.drop_path.drop_prob)
    images = torch.randn(4, 3, 64, 96)
    expected = step(called, images, half)
    assert all(map(torch.equal, step(model, images, half), expected))
    model.stages[3][1].drop_path.drop_prob = 0.0  # a schedule
    called.stages[3][1].drop_path.drop_prob = 0.0
    changed = step(model, images, half)
    assert all(map(torch.equal, changed, step(called, images, half)))
    assert not torch.equal(changed[3], expected[3])


def test_stochastic_depth_under_autocast_on_a_gpu():
    """The values agree to the rounding of bfloat16."""
    model = randomise(RMT(DEEP)).train()
    images = torch.randn(2, 3, 64, 96)
    expected, found = (step(model, x, True)[:4] for x in (images, images.as_subclass(OnGPU)))
    for x, y in zip(found, expected, strict=True):
        assert (x - y).abs().max() <= 0.1 * y.abs().max()


def test_frozen_stages_drop_no_branches():
    """Only the blocks of stage 4, which is trained, draw random numbers."""
    model = RMT(DEEP, frozen_stages=3).train()
    with Operators() as operators:
        model(torch.randn(2, 3, 64, 96))
    assert operators.names["rand"] == 1


def test_compiled_blocks_are_one_graph_per_stage():
    """Blocks differ in their rate of stochastic depth, which is no part of a graph."""
    model, graphs = RMT(DEEP).train(), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    for stage in model.stages:
        for block in stage:
            block.compile(backend=count, dynamic=False)
    maps = model(torch.randn(2, 3, 64, 96))
    torch.compiler.reset()
    assert len(graphs) == 4 and all(x.isfinite().all() for x in maps)
