"""What every family refuses: leftover, missing, differing and colliding entries."""

import pytest
import torch
from mmengine.config import Config
from mmseg.registry import MODELS

from mmseg_ext.backbones import EAMLP, DeepViT, LambdaResNet
from mmseg_ext.checkpoint import convert_official, read_state_dict
from mmseg_ext.converters import FAMILIES, family_cfg
from tests.configs import CONFIGS
from tests.messages import raises_message
from tests.parity import Fixture


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"blocks.0.ls1": torch.zeros(1)}, ["blocks.0.ls1"]),
        ({"blocks.1.attn.proj.bias": None}, ["blocks.1.attn.proj.bias"]),
        ({"norm.bias": torch.zeros(3)}, ["norm.bias", "(3,)", "(24,)"]),
    ],
)
def test_entries_that_do_not_fit_are_listed(change, parts):
    model = DeepViT(arch={"embed_dims": 24, "depth": 3, "num_heads": 3}, num_classes=2)
    changed = {k: v for k, v in (model.state_dict() | change).items() if v is not None}
    with raises_message(ValueError, *parts):
        convert_official("deepvit", changed, classifier=True)


def test_two_keys_that_become_one_are_an_error(tmp_path):
    """One of them has the prefix of a wrapped model or of a segmentor."""
    torch.save({"x": torch.ones(1), "module.x": torch.ones(1)}, tmp_path / "a.pth")
    with raises_message(ValueError, "'module.'", where=tmp_path / "a.pth"):
        read_state_dict(tmp_path / "a.pth")
    published = Fixture("rmt_small_features").state_dict
    key = "patch_embed.proj.0.weight"
    with raises_message(ValueError, repr(key), where=f"backbone.{key}: "):
        convert_official("rmt", {**published, f"backbone.{key}": published[key]})


@pytest.mark.parametrize("family", FAMILIES)
def test_another_models_checkpoint_is_refused(family):
    with pytest.raises(ValueError):
        convert_official(family, {"features.0.weight": torch.zeros(3, 3)})


@pytest.mark.parametrize(
    ("family", "config"),
    {
        "eanet": "ea_r101_voc_45k",
        "rmt_segmentor": "fpn_rmt_tiny_ade20k_80k",
        "deepvit": "upernet_deepvit_s_ade20k_160k",
        "eamlp": "upernet_eamlp_14_ade20k_160k",
        "timm_lambda_resnet": "upernet_lambda_timm_26t_ade20k_160k",
    }.items(),
)
def test_configs_normalize_images_as_the_published_weights_need(family, config):
    settings = Config.fromfile(CONFIGS / f"{config}.py").model
    with torch.device("meta"):
        backbone = MODELS.build(settings.backbone)
    for cfg in (family_cfg(family), getattr(backbone, "default_cfg", family_cfg(family))):
        assert (*settings.data_preprocessor.mean,) == cfg["mean"]
        assert (*settings.data_preprocessor.std,) == cfg["std"]


def test_default_cfg_belongs_to_the_arch():
    with torch.device("meta"):
        backbones = [EAMLP("7"), EAMLP("10"), LambdaResNet(), LambdaResNet(arch="timm_50ts")]
    sizes = [backbone.default_cfg["input_size"] for backbone in backbones]
    assert sizes == [(3, side, side) for side in (384, 224, 224, 256)]
    assert backbones[0].default_cfg == family_cfg("eamlp")
    assert backbones[1].default_cfg["source"] is None  # not published


def test_unknown_families_and_classifiers():
    with pytest.raises(ValueError, match=r"family='resnet'.* eanet, "):
        convert_official("resnet", {})
    with raises_message(ValueError, "'eanet'", "classifier"):
        convert_official("eanet", {}, classifier=True)
