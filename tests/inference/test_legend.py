"""The legend under a segmented picture."""

import numpy as np
import pytest

from mmseg_ext.inference.legend import with_banner, with_legend

CLASSES = ("road", "sky", "a class with a long name")
PALETTE = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200]], dtype=np.uint8)


def labels_of(height: int, width: int) -> np.ndarray:
    """Three quarters sky, the rest road; nothing of the third class."""
    labels = np.ones((height, width), dtype=np.uint8)
    labels[: height // 4] = 0
    return labels


@pytest.mark.parametrize("size", [(40, 20), (150, 200), (480, 640), (3000, 4000)])
def test_the_legend_stands_below_and_shows_what_occurs(size):
    height, width = size
    picture = np.full((height, width, 3), 90, dtype=np.uint8)
    page = with_legend(picture, labels_of(height, width), CLASSES, PALETTE)
    assert (page[:height, :width] == picture).all()
    strip = page[height:]
    pixels = [(strip == colour).all(-1).sum() for colour in PALETTE]
    assert pixels[0] == pixels[1] > 80 and pixels[2] == 0
    (first, second) = (np.argwhere((strip == colour).all(-1))[0] for colour in PALETTE[[1, 0]])
    assert tuple(first) < tuple(second)  # the larger class first
    assert strip.shape[0] < 0.2 * max(height, 300)
    assert strip.shape[1] >= width
    assert (strip.min(-1) < 60).mean() > 0.01  # letters


def test_the_banner_fits_its_picture():
    for width in (64, 200, 4000):
        page = with_banner(np.full((100, width, 3), 90, dtype=np.uint8), "random weights")
        assert page.shape == (100, width, 3)
        assert (page[0] == (190, 0, 0)).all() and (page == 255).all(-1).any()
        assert (page[-1] == 90).all()
