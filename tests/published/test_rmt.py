"""RMT's published weights in ours, and the segmentors of its configs in the paper's numbers."""

import pytest
import torch
from mmengine.config import Config
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmseg.registry import MODELS, PARAM_SCHEDULERS

from mmseg_ext.backbones.rmt import RMT
from mmseg_ext.checkpoint import convert_official, read_state_dict
from mmseg_ext.commands._convert_file import main
from mmseg_ext.cost.measure import count_multiply_adds
from tests.configs import CONFIGS
from tests.parity import Fixture

# Parameters (M) and FLOPs (G) in the paper's table: at 512x512 for tiny, at 512x2048 otherwise.
SEGMENTORS = {
    "fpn_rmt_tiny_ade20k_80k": (17.0, 33.7),
    "fpn_rmt_small_ade20k_80k": (30, 180),
    "fpn_rmt_base_ade20k_80k": (57, 294),
    "fpn_rmt_large_ade20k_80k": (98, 482),
    "upernet_rmt_small_ade20k_160k": (56, 937),
    "upernet_rmt_base_ade20k_160k": (83, 1051),
    "upernet_rmt_large_ade20k_160k": (125, 1241),
}


def segmentor(name: str) -> torch.nn.Module:
    config = Config.fromfile(CONFIGS / f"{name}.py")
    with torch.device("meta"):
        return revert_sync_batchnorm(MODELS.build(config.model)).eval()


def formulas() -> dict[str, torch.Tensor]:
    """`Relpos` buffers of RMT-small as the published code registers them, in float32."""
    state = {}
    for i, (heads, width, spread) in enumerate([(4, 16, 4), (4, 32, 4), (8, 32, 6), (16, 32, 6)]):
        angle = 1.0 / (10000 ** torch.linspace(0, 1, width // 2))
        state[f"layers.{i}.Relpos.angle"] = angle.unsqueeze(-1).repeat(1, 2).flatten()
        exponent = -2 - spread * torch.arange(heads, dtype=torch.float) / heads
        state[f"layers.{i}.Relpos.decay"] = torch.log(1 - 2**exponent)
    return state


@pytest.fixture(scope="module")
def features() -> dict[str, torch.Tensor]:
    return Fixture("rmt_small_features").state_dict


@pytest.fixture(scope="module")
def classifier() -> dict[str, torch.Tensor]:
    return Fixture("rmt_classifier_small").state_dict


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
    RMT("small").load_state_dict(converted, strict=True)
    for i, width in enumerate((64, 128, 256, 512)):
        assert torch.equal(converted[f"out_norms.{i}.weight"], torch.ones(width))
        assert torch.equal(converted[f"out_norms.{i}.bias"], torch.zeros(width))
    assert not any("classifier" in key for key in converted)


@pytest.mark.parametrize("as_classifier", [True, False])
def test_formulas_may_be_present(classifier, as_classifier):
    plain = convert_official("rmt", classifier, classifier=as_classifier)
    whole = convert_official("rmt", {**classifier, **formulas()}, classifier=as_classifier)
    assert plain.keys() == whole.keys()


@pytest.mark.parametrize("kind", ["angle", "decay"])
def test_another_formula_is_an_error(features, kind):
    state = {**features, **formulas()}
    state[f"layers.2.Relpos.{kind}"] = state[f"layers.2.Relpos.{kind}"] * 1.1
    with pytest.raises(ValueError, match=rf"layers\.2\.Relpos\.{kind} differs from its formula"):
        convert_official("rmt", state)


def test_token_labelled_classifier(classifier):
    state = {**classifier, "aux_head.weight": torch.ones(1000, 512), "aux_head.bias": torch.ones(9)}
    RMT("small").load_state_dict(convert_official("rmt", state), strict=True)
    with pytest.raises(ValueError, match=r"aux_head"):
        convert_official("rmt", state, classifier=True)


def test_file_without_a_classifier(features):
    for state in (features, {f"backbone.{k}": v for k, v in features.items()}):
        with pytest.raises(ValueError, match=r"missing keys: the classifier's"):
            convert_official("rmt", state, classifier=True)


def test_a_classifier_or_a_segmentor(tmp_path, capsys):
    arguments = [str(tmp_path / "a.pth"), str(tmp_path / "b.pth"), "--classifier", "--segmentor"]
    with pytest.raises(SystemExit, match="2"):
        main("rmt", arguments, classifier=True, segmentor_family="rmt_segmentor")
    assert "--segmentor: not allowed with argument --classifier" in capsys.readouterr().err


def test_layer_scale_changes_shape():
    with torch.device("meta"):
        model = RMT("base")
    published = {}
    for key, value in model.state_dict().items():
        match key.split("."):
            case ["stem", *rest]:
                name = ".".join(["patch_embed.proj", *rest])
            case ["downsamples", i, part, leaf]:
                part = {"conv": "reduction", "norm": "norm"}[part]
                name = f"layers.{i}.downsample.{part}.{leaf}"
            case ["out_norms", *rest]:
                name = ".".join(["extra_norms", *rest])
            case ["stages", i, j, *rest]:
                rest = ".".join(rest)
                for ours, theirs in {
                    "attn.lce": "retention.lepe.conv",
                    "attn.": "retention.",
                    "norm1": "retention_layer_norm",
                    "norm2": "final_layer_norm",
                    "ffn.dwconv": "ffn.dwconv.conv",
                    "cpe": "pos.conv",
                    "gamma": "gamma_",
                }.items():
                    if rest.startswith(ours):
                        rest = theirs + rest.removeprefix(ours)
                        break
                name = f"layers.{i}.blocks.{j}.{rest}"
        published[name] = value.view(1, 1, 1, -1) if "gamma_" in name else value
    assert published["layers.2.blocks.0.gamma_1"].shape == (1, 1, 1, 320)
    converted = convert_official("rmt", published)
    assert {k: v.shape for k, v in converted.items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"layers.0.blocks.0.extra": torch.ones(1)},
            r"unmapped keys .* layers\.0\.blocks\.0\.extra",
        ),
        ({"layers.0.blocks.0.ffn.fc1.bias": None}, r"missing keys: stages\.0\.0\.ffn\.fc1\.bias"),
        ({"layers.0.blocks.0.ffn.fc1.bias": torch.ones(3)}, r"\(3,\) instead of \(256,\)"),
        ({"layers.0.blocks.7.pos.conv.bias": torch.ones(64)}, r"are none of tiny, small, base"),
    ],
)
def test_other_checkpoints_are_errors(features, change, message):
    state = {k: v for k, v in {**features, **change}.items() if v is not None}
    with pytest.raises(ValueError, match=message):
        convert_official("rmt", state)


def test_whole_segmentor(features, tmp_path):
    """A published segmentor: the backbone by default, with --segmentor all of it."""
    model = segmentor("fpn_rmt_small_ade20k_80k")
    others = {
        k: torch.zeros(v.shape)
        for k, v in model.state_dict().items()
        if not k.startswith("backbone")
    }
    state = {f"backbone.{k}": v for k, v in features.items()} | others
    assert convert_official("rmt", state).keys() == RMT("small").state_dict().keys()
    torch.save({"state_dict": state, "meta": {}}, tmp_path / "published.pth")
    arguments = [str(tmp_path / "published.pth"), str(tmp_path / "ours.pth"), "--segmentor"]
    assert main("rmt", arguments, classifier=True, segmentor_family="rmt_segmentor") == 0
    model.load_state_dict(read_state_dict(tmp_path / "ours.pth"), strict=True, assign=True)
    assert torch.equal(
        model.backbone.stages[0][0].cpe.weight, features["layers.0.blocks.0.pos.conv.weight"]
    )
    with pytest.raises(ValueError, match=r"decode_head"):
        convert_official("rmt_segmentor", features)


def test_upernet_recipe():
    """Weight decay by published names, and the published rates: warm-up times linear decay."""
    config = Config.fromfile(CONFIGS / "upernet_rmt_small_ade20k_160k.py")
    model = segmentor("upernet_rmt_small_ade20k_160k")
    wrapper = build_optim_wrapper(model, config.optim_wrapper)
    names = {id(p): n for n, p in model.named_parameters()}
    free = {names[id(g["params"][0])] for g in wrapper.param_groups if g["weight_decay"] == 0}
    decayed = set(names.values()) - free
    assert {
        "backbone.stages.0.0.norm1.weight",
        "backbone.downsamples.0.norm.bias",
        "backbone.out_norms.3.weight",
    } <= free
    assert {"backbone.stem.1.weight", "backbone.downsamples.0.conv.bias"} <= decayed
    assert all("norm" in name for name in free)
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=6e-5)
    schedulers = [
        PARAM_SCHEDULERS.build({**s, "optimizer": optimizer}) for s in config.param_scheduler
    ]
    for i in range(3000):
        warm = 1 - (1 - min(i, 1500) / 1500) * (1 - 1e-6)
        expected = 6e-5 * (1 - i / 160000) * warm
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-6)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
