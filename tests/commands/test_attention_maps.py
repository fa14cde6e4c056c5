"""Attention views: each map recomputed is the one that multiplies the values; pictures of each."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmseg.registry import MODELS
from PIL import Image

from mmseg_ext.backbones import EAMLP, DeepViT
from mmseg_ext.commands.attention_maps import main, seen_pixel, unique_names
from mmseg_ext.decode_heads.ea_head import JSegEAHead
from mmseg_ext.inspection.attention_pictures import Scene, draw_layer, overlay
from mmseg_ext.inspection.attention_views import (
    attention_layers,
    captured_inputs,
    chosen_layers,
    decay_row,
    head_maps,
    lambda_response,
    manhattan_row,
    position_of,
    slot_maps,
    summarise_slots,
    token_grid,
)
from mmseg_ext.inspection.similarity import attention_maps
from mmseg_ext.layers.external_attention import ExternalAttention2d
from mmseg_ext.layers.lambda_layer import LambdaLayer
from mmseg_ext.layers.manhattan_attention import ManhattanAttention
from mmseg_ext.layers.re_attention import ReAttention
from tests.models import assert_same, randomise

CLASSES, PALETTE = ("ground", "box"), [[20, 20, 20], [230, 90, 60]]


@pytest.fixture
def scene() -> Scene:
    rng = np.random.default_rng(0)
    labels = torch.zeros(24, 32, dtype=torch.long)
    labels[:12, :16] = 1
    image = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
    return Scene(image, labels, CLASSES, PALETTE, (6, 20))


def test_slot_maps_multiply_the_memory():
    torch.manual_seed(0)
    layer = randomise(ExternalAttention2d(12, memory_size=7)).double().eval()
    x = torch.randn(1, 12, 5, 6, dtype=torch.float64)
    maps = slot_maps(layer, x, (40, 48))
    torch.testing.assert_close(maps.sum(0), torch.ones(5, 6, dtype=torch.float64))
    values = torch.einsum("cs,shw->chw", layer.linear_1.weight[..., 0], maps)
    assert_same(torch.relu(layer.conv2(values[None]) + x), layer(x), rtol=1e-6)


def test_slot_maps_of_the_second_head_multiply_its_memory():
    """From what a segmentor's forward calls the head with, to the scores that it gives."""
    torch.manual_seed(0)
    config = Config.fromfile("configs/ea_r18_shapes.py").model
    config.decode_head = {
        **{k: config.decode_head[k] for k in ("in_channels", "in_index", "num_classes")},
        **{"type": "JSegEAHead", "channels": 12, "memory_size": 7},
    }
    model = randomise(MODELS.build(config)).double().eval()
    layers = attention_layers(model)
    assert layers == {"decode_head": model.decode_head}
    image = torch.randn(1, 3, 32, 48, dtype=torch.float64)
    inputs, _ = captured_inputs(model, layers, image)
    head, x = model.decode_head, inputs["decode_head"]
    maps = slot_maps(head, x, (32, 48))
    torch.testing.assert_close(maps.sum(0), torch.ones_like(maps[0]))
    scores = head.cls_seg(head.conv2(head.linear_1(maps[None]) + x))
    with torch.no_grad():
        assert_same(scores.detach(), head(model.extract_feat(image)), rtol=1e-6)


def test_slots_are_ordered_by_mass_and_told_by_class():
    """Slot 1 has three quarters of all attention and lies where class 1 is, a quarter of it."""
    labels = torch.zeros(8, 8, dtype=torch.long)
    labels[:4, :4] = 1
    labels[4:, 4:] = 255  # ignored
    right = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    slots = summarise_slots(torch.stack([1 - right, right]), labels, 3)
    assert slots.index.tolist() == [1, 0]
    torch.testing.assert_close(slots.mass, torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(slots.area, torch.tensor([0.5, 0.25, 0.0]))
    torch.testing.assert_close(slots.share, torch.tensor([[1 / 3, 1 / 3, 0], [1.0, 0, 0]]))
    torch.testing.assert_close(slots.lift, torch.tensor([[2 / 3, 4 / 3, 0], [2.0, 0, 0]]))


def test_slot_maps_of_token_models_leave_the_class_token_out():
    torch.manual_seed(0)
    model = EAMLP(dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2), img_size=48).eval()
    layers = attention_layers(model)
    layer = list(layers.values())[-1]
    seen = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    model(torch.randn(1, 3, 32, 48))
    handle.remove()
    maps = slot_maps(layer, seen[0], (32, 48))
    heads = attention_maps(layer, seen[0]).maps[0]
    assert maps.shape[1:] == (2, 3)
    torch.testing.assert_close(maps[1, 1, 2], heads[0, 6, 1] / len(heads))
    torch.testing.assert_close(maps.sum(0), torch.ones(2, 3))
    with pytest.raises(ValueError, match="tokens"):
        token_grid(8, (32, 48))


@pytest.mark.parametrize("decay", ["logit", "product", None])
@pytest.mark.parametrize("decomposed", [True, False])
def test_manhattan_row_is_a_row_of_the_layers_map(decay, decomposed):
    torch.manual_seed(0)
    layer = ManhattanAttention(16, 2, decomposed=decomposed, decay=decay).double()
    x = torch.randn(1, 4, 5, 16, dtype=torch.float64)
    maps = attention_maps(layer, x)
    maps = maps.composed() if decomposed else maps.maps
    row = manhattan_row(layer, x, (1, 3))
    assert_same(row.flatten(1), maps[0, :, 1 * 5 + 3], rtol=1e-10)
    if decay != "product":
        torch.testing.assert_close(row.sum((1, 2)), torch.ones(2, dtype=torch.float64))
    # It is what multiplies the values: the layer's own result at that position.
    values = layer.v_proj(x)[0].unflatten(-1, (2, -1))  # (H, W, n, d)
    out = (
        torch.einsum("nhw,hwnd->nd", row, values).flatten()
        + layer.lce(layer.v_proj(x).permute(0, 3, 1, 2))[0, :, 1, 3]
    )
    assert_same(layer.out_proj(out), layer(x)[0, 1, 3], rtol=1e-6)


def test_decay_row_is_gamma_to_the_distance():
    layer = ManhattanAttention(16, 2, decay_start=2.0, decay_range=4.0)
    row = decay_row(layer, (4, 5), (1, 3))
    assert row[0, 1, 3] == 1.0
    assert float(row[0, 3, 0]) == pytest.approx(0.75**5, rel=1e-6)
    assert float(row[1, 0, 3]) == pytest.approx(1 - 2**-4, rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        dict(receptive_field=5, position_bias=True),
        dict(receptive_field=3, dilation=2, intra_depth=2),
        dict(receptive_field=None, resolution=(6, 7), content=False),
        dict(receptive_field=3, position=False),
    ],
)
def test_lambda_response_gives_the_layers_output(options):
    torch.manual_seed(0)
    layer = randomise(LambdaLayer(8, key_depth=4, num_heads=2, **options)).double().eval()
    x = torch.randn(1, 8, 6, 7, dtype=torch.float64)
    for position in ((0, 6), (3, 2)):
        response, values = lambda_response(layer, x, position)
        y = torch.einsum("huyx,uvyx->hv", response.total, values) + response.constant[:, None]
        assert_same(y.flatten(), layer(x)[0, :, position[0], position[1]], rtol=1e-10)


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_head_maps_before_and_after_re_attention(norm):
    torch.manual_seed(0)
    layer = randomise(ReAttention(12, 3, norm=norm)).double().eval()
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    before, after = head_maps(layer, x)
    torch.testing.assert_close(before.sum(-1), torch.ones(3, 7, dtype=torch.float64))
    mixed = layer.reatten_matrix(before[None])
    if norm == "batch":
        mixed = layer.var_norm(mixed)
    else:
        mixed = layer.var_norm(mixed.movedim(1, -1)).movedim(-1, 1)
    assert_same(after, mixed[0], rtol=1e-8)
    values = layer.qkv(x).unflatten(-1, (3, 3, -1))[0, :, 2].transpose(0, 1)  # (H, N, d)
    out = (after @ values).transpose(0, 1).flatten(1)
    assert_same(layer.proj(out), layer(x)[0], rtol=1e-8)


def test_positions_and_their_limits():
    assert position_of((23, 0), (24, 32), (6, 8)) == (5, 0)
    with pytest.raises(ValueError, match="pixel"):
        position_of((24, 0), (24, 32), (6, 8))


def test_overlay_is_brightest_where_the_map_is():
    image = np.full((8, 8, 3), 100, np.uint8)
    heat = torch.zeros(4, 4)
    heat[1, 2] = 0.3
    bright = overlay(image, heat).sum(-1)
    where = np.argwhere(bright == bright.max())
    assert where.min(0).tolist() == [2, 4] and where.max(0).tolist() == [3, 5]


@pytest.mark.parametrize("kind", ["slots", "second head", "manhattan", "lambda", "heads"])
def test_each_kind_is_drawn(kind, scene, tmp_path):
    torch.manual_seed(0)
    layer, x = {
        "slots": (ExternalAttention2d(8, memory_size=16), torch.randn(1, 8, 6, 8)),
        "second head": (
            JSegEAHead(8, channels=8, num_classes=2, memory_size=16),
            torch.randn(1, 8, 6, 8),
        ),
        "manhattan": (ManhattanAttention(16, 4), torch.randn(1, 6, 8, 16)),
        "lambda": (LambdaLayer(8, key_depth=4, receptive_field=5), torch.randn(1, 8, 6, 8)),
        "heads": (ReAttention(12, 3), torch.randn(1, 5, 12)),
    }[kind]
    said = draw_layer(layer.eval(), x, scene, kind, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert np.asarray(picture.convert("RGB")).std() > 10
    told = {
        "slots": "slot",
        "second head": "slot",
        "manhattan": "head",
        "lambda": "content",
        "heads": "cosine",
    }
    assert told[kind] in said


def test_chosen_layers_are_the_last_of_each_kind_or_the_named():
    model = DeepViT(dict(embed_dims=24, depth=3, num_heads=3), img_size=32)
    names = list(attention_layers(model))
    assert list(chosen_layers(model, None)) == names[-1:]
    assert list(chosen_layers(model, names[:1])) == names[:1]
    with pytest.raises(ValueError, match="there are"):
        chosen_layers(model, ["nowhere"])
    with pytest.raises(ValueError, match="none of the layers"):
        attention_layers(torch.nn.Linear(2, 2))


@pytest.fixture
def photo(tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (64, 80, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "photo.png")
    return str(tmp_path / "photo.png")


def test_command_draws_a_models_slots(photo, tmp_path, capsys):
    """On a config and an image; the maps leave no trace in the model."""
    out = tmp_path / "maps"
    assert main(["configs/ea_r18_shapes.py", "none", photo, "--out", str(out)]) == 0
    assert "strongest slots" in capsys.readouterr().out
    assert [p.name for p in out.iterdir()] == ["photo_decode_head.external_attention.png"]
    bad = ["configs/ea_r18_shapes.py", "none", photo, "--layers", "x"]
    assert main(bad) == 1
    assert "decode_head.external_attention" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/x.jpg", "b/y.png"], ["x", "y"]),
        (["x.jpg", "x.png", "y.png"], ["x.jpg", "x.png", "y.png"]),
        (["a/x.jpg", "b/x.jpg"], ["a_x.jpg", "b_x.jpg"]),
        (["a/c/x.jpg", "b/c/x.jpg"], ["a_c_x.jpg", "b_c_x.jpg"]),
        (["x.jpg", "x.jpg"], ["x"]),
    ],
)
def test_results_of_two_images_have_two_names(paths, names):
    assert unique_names(paths) == names


def test_a_pixel_is_one_of_the_image_on_disk():
    """Of 100 x 200 pixels seen as 50 x 400: the middle of the pixel counts."""
    assert seen_pixel((0, 0), (100, 200), (50, 400)) == (0, 1)
    assert seen_pixel((99, 199), (100, 200), (50, 400)) == (49, 399)
    assert seen_pixel(None, (100, 200), (50, 400)) == (25, 201)
    with pytest.raises(ValueError, match=r"100 rows and 200 columns, not at \(100, 3\)"):
        seen_pixel((100, 3), (100, 200), (50, 400))


def test_command_names_an_unreadable_image(photo, tmp_path, capsys):
    with open(photo, "r+b") as file:
        file.truncate(2000)
    assert main(["configs/ea_r18_shapes.py", "none", photo, "--out", str(tmp_path / "maps")]) == 1
    assert capsys.readouterr().err == f"error: {photo}: is truncated (2000 bytes)\n"


def test_captured_inputs_are_the_layers_and_leave_no_hook():
    torch.manual_seed(0)
    model = MODELS.build(Config.fromfile("configs/ea_r18_shapes.py").model)
    layers = attention_layers(model)
    image = torch.randn(1, 3, 32, 40)
    inputs, labels = captured_inputs(model, layers, image)
    assert model.training and labels.shape == (32, 40)
    model.eval()
    features = model.decode_head.conv_in(model.extract_feat(image)[3])
    (x,) = inputs.values()
    torch.testing.assert_close(x, features)
    assert not any(m._forward_pre_hooks for m in model.modules())
