"""RMT's published weights in ours, and the segmentors of its configs in the paper's numbers."""

import copy
import functools
import itertools

import pytest
import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmseg.registry import MODELS

from mmseg_ext.backbones import RMT
from mmseg_ext.checkpoint import convert_official
from mmseg_ext.cost.model_cost import count_multiply_adds  # only a command is public
from tests.configs import CONFIGS
from tests.messages import raises_message
from tests.parity import Fixture

# Parameters (M) and FLOPs (G) in the paper's table: at 512x512 for tiny, at 512x2048 for small. The
# tests of the backbones compare those of base and large.
SEGMENTORS = {
    "fpn_rmt_tiny_ade20k_80k": (17.0, 33.7),
    "fpn_rmt_small_ade20k_80k": (30, 180),
    "upernet_rmt_small_ade20k_160k": (56, 937),
}


@functools.cache
def segmentor(name: str) -> torch.nn.Module:
    config = Config.fromfile(CONFIGS / f"{name}.py")
    with torch.device("meta"):
        return revert_sync_batchnorm(MODELS.build(config.model)).eval()


@pytest.fixture(scope="module")
def features() -> dict[str, torch.Tensor]:
    return Fixture("rmt_small_features").state_dict


@pytest.fixture(scope="module")
def classifier() -> dict[str, torch.Tensor]:
    return Fixture("rmt_classifier_small").state_dict


@pytest.mark.slow
@pytest.mark.parametrize("name", SEGMENTORS)
def test_segmentor_has_the_papers_parameters_and_flops(name):
    """The paper counts modules only: no product of attention, and not the auxiliary head."""
    millions, giga = SEGMENTORS[name]
    model = segmentor(name)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    assert parameters == pytest.approx(millions, abs=0.6)
    with torch.device("meta"):
        image = torch.empty(1, 3, 512, 512 if "tiny" in name else 2048)
    assert count_multiply_adds(model, image).modules / 1e9 == pytest.approx(giga, rel=0.005)


def test_classification_file_gives_a_backbone_with_fresh_output_norms(classifier):
    converted = convert_official("rmt", classifier)
    with torch.device("meta"):
        RMT("small").load_state_dict(converted, strict=True, assign=True)
    for i, width in enumerate((64, 128, 256, 512)):
        assert torch.equal(converted[f"out_norms.{i}.weight"], torch.ones(width))
        assert torch.equal(converted[f"out_norms.{i}.bias"], torch.zeros(width))
    assert not any("classifier" in key for key in converted)


def test_formulas_may_be_present_if_they_are_ours(classifier):
    """`Relpos` buffers of RMT-small as the published code registers them, in float32."""
    state = dict(classifier)
    for i, (heads, width, spread) in enumerate([(4, 16, 4), (4, 32, 4), (8, 32, 6), (16, 32, 6)]):
        angle = 1.0 / (10000 ** torch.linspace(0, 1, width // 2))
        state[f"layers.{i}.Relpos.angle"] = angle.unsqueeze(-1).repeat(1, 2).flatten()
        exponent = -2 - spread * torch.arange(heads, dtype=torch.float) / heads
        state[f"layers.{i}.Relpos.decay"] = torch.log(1 - 2**exponent)
    plain, converted = (convert_official("rmt", s, classifier=True) for s in (classifier, state))
    assert converted.keys() == plain.keys()
    for kind in ("angle", "decay"):
        name = f"layers.2.Relpos.{kind}"
        with pytest.raises(ValueError, match=rf"layers\.2\.Relpos\.{kind}: "):
            convert_official("rmt", state | {name: 1.1 * state[name]})


def test_layer_scale_changes_shape(features, monkeypatch):
    """The last two stages of RMT-base and -large have scales (1, 1, 1, C); here RMT-small has."""
    monkeypatch.setitem(RMT.arch_settings["small"], "layer_scales", (None, None, 1e-6, 1e-6))
    scales = {
        f"layers.{stage}.blocks.{i}.gamma_{branch}": torch.randn(1, 1, 1, width)
        for stage, depth, width in ((2, 18, 256), (3, 4, 512))
        for i, branch in itertools.product(range(depth), (1, 2))
    }
    converted = convert_official("rmt", features | scales)
    with torch.device("meta"):
        RMT("small").load_state_dict(converted, strict=True, assign=True)
    assert torch.equal(converted["stages.3.1.gamma2"], scales["layers.3.blocks.1.gamma_2"].view(-1))


def test_whole_segmentor(features):
    """The family rmt takes the backbone of a published segmentor, rmt_segmentor all of it."""
    model = copy.deepcopy(segmentor("fpn_rmt_small_ade20k_80k"))
    parts = model.state_dict().items()
    others = {k: torch.zeros(v.shape) for k, v in parts if not k.startswith("backbone")}
    state = {f"backbone.{k}": v for k, v in features.items()} | others
    assert convert_official("rmt", state).keys() == model.backbone.state_dict().keys()
    converted = convert_official("rmt_segmentor", state)
    model.load_state_dict(converted, strict=True, assign=True)
    assert torch.equal(
        model.backbone.stages[0][0].cpe.weight, features["layers.0.blocks.0.pos.conv.weight"]
    )
    with pytest.raises(ValueError, match="decode_head"):
        convert_official("rmt_segmentor", features)
    with raises_message(ValueError, "classifier.head.weight"):
        convert_official("rmt", features, classifier=True)


def test_parameters_with_norm_in_their_published_name_have_no_weight_decay():
    config = Config.fromfile(CONFIGS / "upernet_rmt_small_ade20k_160k.py")
    model = segmentor("upernet_rmt_small_ade20k_160k")
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    decays = {id(group["params"][0]): group["weight_decay"] for group in wrapper.param_groups}
    free = {name for name, p in model.named_parameters() if decays[id(p)] == 0}
    assert free == {name for name, _ in model.named_parameters() if "norm" in name}
    parts = ("stages.0.0.norm1.weight", "downsamples.0.norm.bias", "out_norms.3.weight")
    assert free.issuperset(f"backbone.{part}" for part in parts)
