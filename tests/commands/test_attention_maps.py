"""The command that draws attention."""

import numpy as np
import pytest
from PIL import Image

from mmseg_ext.commands.attention_maps import main, seen_pixel


def test_pixel_of_the_image_on_disk():
    """Of 100 x 200 pixels seen as 50 x 400: the middle of the pixel counts."""
    assert seen_pixel((0, 0), (100, 200), (50, 400)) == (0, 1)
    assert seen_pixel((99, 199), (100, 200), (50, 400)) == (49, 399)
    assert seen_pixel(None, (100, 200), (50, 400)) == (25, 201)
    with pytest.raises(ValueError, match=r"100 3.*100 rows and 200 columns"):
        seen_pixel((100, 3), (100, 200), (50, 400))


def test_command(tmp_path, capsys):
    """Two images of one name, and a layer that is not there."""
    image = np.random.default_rng(0).integers(0, 255, (64, 80, 3), dtype=np.uint8)
    photos = [tmp_path / "a" / "photo.png", tmp_path / "b" / "photo.png"]
    for photo in photos:
        photo.parent.mkdir()
        Image.fromarray(image).save(photo)
    out = tmp_path / "maps"
    words = ["configs/ea_r18_shapes.py", "none", *map(str, photos), "--out", str(out)]
    assert main(words) == 0
    assert "strongest slots" in capsys.readouterr().out
    name = "photo_decode_head.external_attention.png"
    assert sorted(p.name for p in out.iterdir()) == [f"0_{name}", f"1_{name}"]
    assert main([*words, "--layers", "x"]) == 1
    assert "decode_head.external_attention" in capsys.readouterr().err
