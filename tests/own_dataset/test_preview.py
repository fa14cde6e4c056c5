"""`preview.png`: the place of each picture, its title and the legend."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from mmseg_ext import commands
from tests.datasets.trees import save

SIZES = {
    "upright": (60, 20),
    "flat": (30, 60),
    "square": (40, 40),
    "line": (8, 160),
}  # height, width


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """Return the list of the figures that are saved."""
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    return saved


def new_project(folder, masks, *flags) -> int:
    for i, (name, mask) in enumerate(masks.items()):
        rng = np.random.RandomState(i)
        photo = rng.randint(0, 256, (*mask.shape, 3), np.uint8)
        save(folder / f"images/{name}.png", photo)
        save(folder / f"masks/{name}.png", mask)
    sources = ("--images", f"{folder}/images", "--masks", f"{folder}/masks")
    return commands.run("new_project", [f"{folder}/project", *sources, *flags])


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def halves(seed: int, size=(40, 40)) -> np.ndarray:
    mask = np.zeros(size, np.uint8)
    mask[:, size[1] // (2 + seed % 3) :] = 1
    return mask


def test_pictures_keep_their_proportions_and_do_not_overlap(tmp_path, figures):
    masks = {}
    for name, size in SIZES.items():
        for i in range(2):
            masks[f"{name}_{i}"] = halves(i, size)
    assert new_project(tmp_path, masks, "--val", "0.4") == 0
    (figure,) = figures
    figure.draw_without_rendering()
    places = {}
    for axis in figure.axes:
        box = axis.get_window_extent()
        name = axis.get_title().split(": ")[1].split("_")[0]
        height, width = SIZES[name]
        picture_height, picture_width = axis.images[0].get_array().shape[:2]
        assert box.width == pytest.approx(picture_width, abs=1)
        assert box.height == pytest.approx(picture_height, abs=1)
        if name == "line":  # the labels are below the image
            proportion = width / (2 * height)
        else:
            proportion = 2 * width / height
        assert picture_width / picture_height == pytest.approx(proportion, rel=0.05)
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width
        places[axis.get_title()] = box
    assert len(places) == len(masks)
    for title, box in places.items():
        assert not [t for t, other in places.items() if t != title and box.overlaps(other)]


def test_the_legend_has_ignored_only_if_a_picture_shows_it(tmp_path, figures):
    masks = {f"photo{i}": halves(i) for i in range(4)}
    assert new_project(tmp_path / "all", masks, "--classes", "left", "right") == 0
    for mask in masks.values():
        mask[:4] = 255
    assert new_project(tmp_path / "some", masks, "--classes", "left", "right") == 0
    assert labels(figures[0]) == ["left", "right"]
    assert labels(figures[1]) == ["left", "right", "ignored"]


def test_titles_count_numbered_objects(tmp_path, figures):
    masks = {}
    for i in range(4):
        mask = np.zeros((60, 60), np.uint8)
        for number in range(i + 2):
            mask[10 * number : 10 * number + 6, 5:20] = number + 1
        masks[f"photo{i}"] = mask
    assert new_project(tmp_path, masks, "--objects") == 0
    counts = {}
    for axis in figures[0].axes:
        _, name, count = axis.get_title().split(": ")
        counts[name] = count
    assert counts == {f"photo{i}.png": f"{i + 2} objects" for i in range(4)}
