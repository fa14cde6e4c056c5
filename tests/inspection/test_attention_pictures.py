"""Pictures of attention: the weights that they show."""

from unittest import mock

import matplotlib
import numpy as np
import pytest
import torch
from mmseg.registry import MODELS

from mmseg_ext.backbones import EAMLP, DeepViT
from mmseg_ext.inspection import attention_pictures as pictures  # the command only draws them
from mmseg_ext.layers import ExternalAttention2d, LambdaLayer, ManhattanAttention, ReAttention
from tests.configs import CONFIGS, load
from tests.messages import lines_with, raises_message
from tests.models import randomise

CLASSES, PALETTE = ("ground", "box"), [[20, 20, 20], [230, 90, 60]]


def test_slots_are_sorted_by_weight_with_their_class():
    """Slot 1 has three quarters of all weight and lies where class 1 is, a quarter of the map."""
    labels = torch.zeros(8, 8, dtype=torch.long)
    labels[:4, :4] = 1
    labels[4:, 4:] = 255  # ignored
    right = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    layer = ExternalAttention2d(4)
    layer.attention_map = lambda x: torch.stack([1 - right, right])[None]
    maps = pictures.slot_maps(layer, torch.zeros(1, 4, 2, 2), (8, 8))
    torch.testing.assert_close(maps, torch.stack([right, 1 - right]))
    preference = pictures.measure_preference(maps, labels, 3)
    torch.testing.assert_close(preference, torch.tensor([[2 / 3, 4 / 3, 0], [2.0, 0, 0]]))


def test_class_token_is_left_out():
    model = EAMLP(dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2), img_size=48).eval()
    (layer,) = pictures.find_layers(model).values()
    x = torch.randn(1, 7, 16)
    maps = pictures.slot_maps(layer, x, (32, 48))
    assert maps.shape[1:] == (2, 3)
    torch.testing.assert_close(maps.sum(0), torch.ones(2, 3))
    weights = layer.attention_map(x)[0, :, 1:].mean(1).flatten() / layer.groups
    torch.testing.assert_close(maps.mean((1, 2)), weights.sort(descending=True).values)
    with raises_message(ValueError, "1 + 2 x 3", 8):
        pictures.patch_grid(8, (32, 48))


def test_maps_are_of_the_pixel():
    """Pixel (20, 40) of 32 x 48 is in patch (1, 2), and in cell (2, 5) of 4 x 6."""
    tokens, x = randomise(ReAttention(12, 3)).eval(), torch.randn(1, 7, 12)
    seen = pictures.head_maps(tokens, x, (32, 48), (20, 40))
    torch.testing.assert_close(seen, tokens.attention_map(x)[0, :, 6, 1:].view(3, 2, 3))
    layer, x = ManhattanAttention(12, 3), torch.randn(1, 4, 6, 12)
    seen = pictures.head_maps(layer, x, (32, 48), (20, 40))
    torch.testing.assert_close(seen, layer.attention_map(x)[0, :, 17].view(3, 4, 6))
    layer = LambdaLayer(12, key_depth=4, num_heads=3, intra_depth=2, receptive_field=3).eval()
    x = torch.randn(1, 12, 4, 6)
    seen = pictures.head_maps(layer, x, (32, 48), (20, 40))
    torch.testing.assert_close(seen, layer.attention_map(x)[0, :, :, 17].mean(1).view(3, 4, 6))


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """Draw on an image of one gray value, all of it class 1, with names that are not formulas."""
    save = mock.Mock(wraps=pictures.save_figure)
    monkeypatch.setattr(pictures, "save_figure", save)
    image, labels = np.full((24, 32, 3), 51, np.uint8), torch.ones(24, 32).long()
    scene = pictures.Scene(image, labels, [f"{name} $\\frac" for name in CLASSES], PALETTE, (6, 20))

    def drawing(layer, x) -> tuple:
        summary = pictures.draw_layer(layer, x, scene, scene.classes[0], tmp_path / "a.png")
        (figure, *_), _ = save.call_args
        return summary, figure, {axes.get_title(): axes for axes in figure.axes if axes.images}

    return drawing


@pytest.mark.parametrize(("sign", "pale"), [(1, "Reds"), (-1, "RdBu_r")])
def test_panels_of_heads(sign, pale, draw):
    """Head 0 attends to the first position, the others to the query, cell (1, 5) of 6 x 8."""
    layer, maps = ManhattanAttention(6, 3), torch.zeros(1, 3, 1, 48)
    maps[0, 0, 0, 0], maps[0, 1:, 0, 13] = 1, sign
    layer.attention_map = mock.Mock(return_value=maps)
    summary, figure, panels = draw(layer, torch.zeros(1, 6, 8, 6))
    assert layer.attention_map.call_args.args[1] == (1, 5)
    assert "6.0, 0.0, 0.0" in summary
    heads = ["head 0", "head 1", "head 2"]
    assert list(panels) == ["image", "prediction", "mean of the heads", *heads]
    assert not any(axes.axison for axes in figure.axes[:-1])  # neither frames nor empty plots
    shown = {title: np.asarray(axes.images[0].get_array()) for title, axes in panels.items()}
    assert (shown["prediction"] == PALETTE[1]).all()
    zero = 0.3 * 51 / 255 + 0.7 * np.array(matplotlib.colormaps[pale]((1 - sign) / 4)[:3])
    colored = np.abs(shown["head 0"] - zero).max(-1) > 0.05
    assert colored[:4, :4].all() and colored.sum() == 16
    assert shown["head 1"][0, 0] == pytest.approx(zero)
    if sign < 0:
        positive, negative = shown["head 0"][0, 0], shown["head 1"][6, 20]
        assert positive[0] > 2 * positive[2] and negative[2] > 2 * negative[0]  # red and blue
    for axes in panels.values():
        assert axes.lines[0].get_xydata().tolist() == [[20, 6]]
    assert figure.axes[-1].get_ylim() == (min(sign, 0), 1)  # the color bar


def test_panels_of_slots(draw):
    """The eight strongest of ten, each with the class that it prefers."""
    layer, shares = ExternalAttention2d(4), torch.arange(1.0, 11) / 55
    layer.attention_map = lambda x: shares[None, :, None, None].expand(1, 10, 2, 2)
    summary, figure, panels = draw(layer, torch.zeros(1, 4, 2, 2))
    assert lines_with(summary, 8, "95 %")
    shares = [f"{100 * share / 55:.1f} % of the weight" for share in range(10, 2, -1)]
    titles = [f"{share}\n{CLASSES[1]} $\\frac × 1.0" for share in shares]
    assert list(panels) == ["image", "prediction", *titles]
    assert not any(axes.lines for axes in panels.values())
    assert figure.texts[0].get_text() == f"{CLASSES[0]} $\\frac"


def test_select_layers():
    model = DeepViT(dict(embed_dims=24, depth=3, num_heads=3), img_size=32)
    names = list(pictures.find_layers(model))
    assert list(pictures.select_layers(model, None)) == names[-1:]
    assert list(pictures.select_layers(model, names[:1])) == names[:1]
    with raises_message(ValueError, "nowhere", todo=repr(names[0])):
        pictures.select_layers(model, ["nowhere"])
    with raises_message(ValueError, "ExternalAttention2d", where="Linear "):
        pictures.find_layers(torch.nn.Linear(2, 2))


def test_capture_inputs_leaves_no_hook():
    model = MODELS.build(load(CONFIGS / "ea_r18_shapes.py").model)
    image = torch.randn(1, 3, 32, 40)
    inputs, labels = pictures.capture_inputs(model, pictures.find_layers(model), image)
    assert model.training and labels.shape == (32, 40)
    assert not any(m._forward_pre_hooks for m in model.modules())
    (x,) = inputs.values()
    features = model.eval().extract_feat(image)
    torch.testing.assert_close(x, model.decode_head.conv_in(features[3]))
    own = model.encode_decode
    scores = own(image, [{"ori_shape": (32, 40), "img_shape": (32, 40)}])[0, 0]
    model.encode_decode = lambda *args: own(*args)[:, :1] - scores.mean()  # one output channel
    foreground = (scores - scores.mean()).sigmoid()
    for threshold in (0.5, foreground.quantile(0.9).item()):  # of the head
        model.decode_head.threshold = threshold
        _, labels = pictures.capture_inputs(model, pictures.find_layers(model), image)
        assert torch.equal(labels.bool(), foreground > threshold) and labels.any()
    assert labels.float().mean() < 0.2


def test_pixel_of_the_image_on_disk():
    """Of 100 x 200 pixels seen as 50 x 400: the middle of the pixel counts."""
    assert pictures.seen_pixel((0, 0), (100, 200), (50, 400)) == (0, 1)
    assert pictures.seen_pixel((99, 199), (100, 200), (50, 400)) == (49, 399)
    assert pictures.seen_pixel(None, (100, 200), (50, 400)) == (25, 201)
    with raises_message(ValueError, 100, 200, where="--pixel 100 3: "):
        pictures.seen_pixel((100, 3), (100, 200), (50, 400))
