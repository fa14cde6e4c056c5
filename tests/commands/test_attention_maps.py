"""The command that draws attention."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from mmengine.config import Config

from mmseg_ext.commands import run
from mmseg_ext.inspection import attention_pictures  # the command without its drawing
from tests.configs import CONFIGS
from tests.datasets.trees import save
from tests.messages import check_message, lines_with

CONFIG = str(CONFIGS / "ea_r18_shapes.py")
LAYER = "decode_head.external_attention"


def write_photos(folder: Path, size: tuple[int, int]) -> list[str]:
    """Write two orange images of one name in two folders."""
    photos = [folder / "a" / "photo.png", folder / "b" / "photo.png"]
    for photo in photos:
        save(photo, np.full((*size, 3), (200, 100, 50), np.uint8))
    return [CONFIG, "none", *map(str, photos), "--out", str(folder / "maps")]


def test_command(tmp_path, capsys):
    """Two images of one name, the list of layers, and a layer that is not there."""
    words = write_photos(tmp_path, (64, 80))
    assert run("attention_maps", [*words, "--list"]) == 0
    assert capsys.readouterr().out == f"{LAYER}  ExternalAttention2d\n"
    assert not (tmp_path / "maps").exists()
    assert run("attention_maps", words) == 0
    assert len(lines_with(capsys.readouterr().out, tmp_path / "maps", 8)) == 2
    names = sorted(p.name for p in (tmp_path / "maps").iterdir())
    assert names == [f"0_photo_{LAYER}.png", f"1_photo_{LAYER}.png"]
    assert run("attention_maps", [*words, "--layers", "x"]) == 1
    assert LAYER in capsys.readouterr().err


def test_images_of_the_projects_own_model(tmp_path, monkeypatch, capsys):
    drawn = Mock(return_value="drawn")
    monkeypatch.setattr(attention_pictures, "draw_layer", drawn)
    photos = write_photos(tmp_path, (64, 80))[2:]
    assert run("attention_maps", photos) == 0
    assert drawn.call_args.args[2].classes == ["background", "nucleus", "border"]
    assert capsys.readouterr().out.count("drawn") == 2
    assert run("attention_maps", [CONFIG, photos[0]]) == 1
    assert "checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "wrong", "told"),
    [
        ("photo.png {config} none", "{config}", "CONFIG CHECKPOINT|none"),
        ("none {config} photo.png", "none", "CONFIG CHECKPOINT|none"),
        ("iter_1.pth photo.png", "iter_1.pth", "CONFIG CHECKPOINT|none"),
        ("iter_1.safetensors {config} photo.png", "iter_1.safetensors", "CONFIG CHECKPOINT|none"),
        ("{config} photo.png none", "none", "CONFIG CHECKPOINT|none"),
        ("{config} photo.png photo.png", "photo.png", "CONFIG CHECKPOINT|none"),
        ("{config} none own.yaml", "own.yaml", "CONFIG CHECKPOINT|none"),
        ("ea_r18_shape none photo.png", "ea_r18_shape", "ea_r18_shapes"),
        ("nosuch photo.png", "nosuch", "CONFIG CHECKPOINT|none"),
        ("photo.png missing.png", "missing.png", "CONFIG CHECKPOINT|none"),
        ("{config} none missing.png", "missing.png", "CONFIG CHECKPOINT|none"),
        ("folder", "folder", "CONFIG CHECKPOINT|none"),
        ("{config} none", "{config} none", "CONFIG CHECKPOINT|none"),
        ("", "attention_maps", "CONFIG CHECKPOINT|none"),
        ("nosuch.json none photo.png", "config nosuch.json", ""),
    ],
)
def test_words_in_another_order_are_one_line(words, wrong, told, tmp_path, monkeypatch, capsys):
    """And never the project's own model in place of the one that was meant."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "photo.png", np.zeros((64, 64, 3), np.uint8))
    (tmp_path / "folder").mkdir()
    drawn = Mock(return_value="drawn")
    monkeypatch.setattr(attention_pictures, "draw_layer", drawn)
    assert run("attention_maps", words.format(config=CONFIG).split()) == 1
    error = capsys.readouterr().err.removeprefix("mmseg_ext: ")
    check_message(error, where=f"{wrong.format(config=CONFIG)}: ", todo=told)
    assert error.count("\n") == 1 and not drawn.called


def test_the_list_of_layers_needs_no_image(tmp_path, capsys):
    config = tmp_path / "own.json"
    Config.fromfile(CONFIG).dump(config)
    for words in ([CONFIG, "none"], [CONFIG], [str(config)], ["ea_r18_shapes"]):
        assert run("attention_maps", [*words, "--list"]) == 0
        assert capsys.readouterr().out == f"{LAYER}  ExternalAttention2d\n"
    assert run("attention_maps", ["--list"]) == 0
    assert "ExternalAttention2d" in capsys.readouterr().out


def test_scene(tmp_path, monkeypatch, capsys):
    """An image that the network gets padded is drawn padded, in RGB."""
    monkeypatch.setattr(attention_pictures, "draw_layer", Mock(return_value="drawn"))
    words = write_photos(tmp_path, (60, 72))
    option = "model.data_preprocessor.test_cfg.size_divisor=32"
    assert run("attention_maps", [*words, "--pixel", "59", "3", "--cfg-options", option]) == 0
    _, _, scene, *_ = attention_pictures.draw_layer.call_args.args
    assert scene.image.shape == (64, 96, 3) and scene.pixel == (59, 3)
    assert (scene.image[:60, :72] == (200, 100, 50)).all()
    assert not scene.image[60:].any() and not scene.image[:, 72:].any()
    assert len(scene.classes) == 6 and capsys.readouterr().out.count("drawn") == 2
