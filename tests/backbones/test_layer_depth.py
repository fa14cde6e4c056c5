"""The depth of every parameter, for layer-wise learning rates."""

import pytest
from mmengine.optim import build_optim_wrapper
from mmseg.registry import MODELS
from torch import nn

from mmseg_ext.errors import LaunchError

# A small build of each backbone, the depth of the names that start so, and the number of depths.
RMT = {"type": "RMT", "arch": {"depths": (1, 2, 1, 1)}, "out_indices": (0, 2)}
RMT_DEPTHS = {"stem.": 0, "stages.0.0.": 1, "downsamples.0.": 2, "stages.1.0.": 2}
RMT_DEPTHS |= {"stages.1.1.": 3, "downsamples.1.": 4, "stages.2.0.": 4, "out_norms.": 5}
LAMBDA = {"type": "LambdaResNet", "depth": (1, 2, 1, 1)}
LAMBDA_DEPTHS = {"layer1.0.": 1, "layer2.0.": 2, "layer2.1.": 3, "layer3.0.": 4, "layer4.0.": 5}
TOKENS = {"arch": {"depth": 2}, "out_indices": (0, 1)}
TOKEN_DEPTHS = {"cls_token": 0, "blocks.0.": 1, "blocks.1.": 2, "norm.": 3}
LITE = {"type": "EfficientNetLite", "arch": {"depths": (2, 1, 1, 1, 2, 1, 1)}, "num_classes": 3}
LITE_DEPTHS = {"stem.": 0, "stages.0.0.": 1, "stages.1.0.": 2, "stages.2.0.": 3, "stages.2.1.": 4}
LITE_DEPTHS |= {"stages.2.2.": 5, "stages.3.0.": 6, "stages.3.1.": 7, "classifier.": 8}
CASES = [
    (LITE, LITE_DEPTHS, 9),
    (RMT, RMT_DEPTHS, 6),
    (LAMBDA | {"num_classes": 3}, LAMBDA_DEPTHS | {"conv1.": 0, "bn1.": 0, "fc.": 6}, 7),
    (LAMBDA | {"stem": "deep"}, LAMBDA_DEPTHS | {"stem.": 0}, 7),
    (TOKENS | {"type": "DeepViT"}, TOKEN_DEPTHS | {"patch_embed.": 0, "pos_embed": 0}, 4),
    (
        TOKENS | {"type": "EAMLP", "num_classes": 3},
        TOKEN_DEPTHS | {"tokens_to_token.": 0, "head.": 3},
        4,
    ),
]


@pytest.mark.parametrize(("config", "depths", "count"), CASES)
def test_every_parameter_has_the_depth_of_its_block(config, depths, count):
    model, used = MODELS.build(dict(config)), set()
    for name, _ in model.named_parameters():
        (start,) = (start for start in depths if name.startswith(start))
        assert model.get_layer_depth(name) == (depths[start], count), name
        assert model.get_layer_depth(f"backbone.{name}", "backbone.") == (depths[start], count)
        used.add(start)
    assert used == set(depths)
    assert model.get_layer_depth("decode_head.stem.weight", "backbone.") == (count - 1, count)


class Segmentor(nn.Module):
    def __init__(self, backbone: dict):
        super().__init__()
        self.backbone, self.decode_head = MODELS.build(dict(backbone)), nn.Conv2d(4, 4, 1)


def test_rates_decrease_from_the_head_to_the_stem():
    """On top of the settings of mmengine's constructor."""
    wrapper: dict = {"optimizer": {"type": "AdamW", "lr": 1.0, "weight_decay": 0.1}}
    wrapper["constructor"] = "LayerDecayOptimWrapperConstructor"
    times = {"decode_head": 10.0, "stages.1.1": 3.0}
    settings = {"custom_keys": {key: {"lr_mult": factor} for key, factor in times.items()}}
    wrapper["paramwise_cfg"] = settings | {"layer_decay_rate": 0.5}
    model = Segmentor(RMT)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in build_optim_wrapper(model, dict(wrapper)).optimizer.param_groups:
        name = names.pop(group["params"][0])
        depth = next((RMT_DEPTHS[s] for s in RMT_DEPTHS if name.startswith(f"backbone.{s}")), 5)
        factor = next((times[key] for key in times if key in name), 1)
        assert group["lr"] == pytest.approx(factor * 0.5 ** (5 - depth)), name
    assert not names
    resnet = {"type": "ResNetV1c", "depth": 18, "norm_cfg": {"type": "BN"}}
    for backbone, more in ((resnet, {"layer_decay_rate": 0.5}), (RMT, {})):
        wrapper["paramwise_cfg"] = settings | more
        with pytest.raises(LaunchError, match=rf"layer_decay_rate=.*{backbone['type']}"):
            build_optim_wrapper(Segmentor(backbone), dict(wrapper))
