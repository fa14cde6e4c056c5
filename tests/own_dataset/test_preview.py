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
    taken = np.zeros(np.rint(figure.bbox.size)[::-1].astype(int), bool)  # from below
    assert len(figure.images) == len(figure.texts) == len(masks)
    for image, text in zip(figure.images, figure.texts, strict=True):
        picture_height, picture_width = image.get_size()
        height, width = SIZES[text.get_text().split(": ")[1].split("_")[0]]
        assert picture_width / picture_height == pytest.approx(2 * width / height, rel=0.05)
        top = image.oy + picture_height
        place = taken[image.oy : top, image.ox : image.ox + picture_width]
        assert place.shape == (picture_height, picture_width) and not place.any()
        place[:] = True
        x, y = text.get_position()
        assert x * taken.shape[1] == pytest.approx(image.ox)
        assert top < y * taken.shape[0] < top + 10


@pytest.mark.parametrize("size", [(30, 40), (40, 40), (36, 64)])
def test_rows_of_common_photos_are_full(size, tmp_path, figures):
    masks = {f"photo{i}": halves(i, size) for i in range(9)}
    assert new_project(tmp_path, masks) == 0
    (figure,) = figures
    right = max(image.ox + image.get_size()[1] for image in figure.images)
    assert right > 0.85 * figure.bbox.width


def test_the_legend_has_ignored_only_if_a_picture_shows_it(tmp_path, figures):
    masks = {f"photo{i}": halves(i) for i in range(4)}
    assert new_project(tmp_path / "all", masks, "--classes", "left", "right") == 0
    for mask in masks.values():
        mask[:4] = 255
    assert new_project(tmp_path / "some", masks, "--classes", "left", "right") == 0
    assert labels(figures[0]) == ["left", "right"]
    assert labels(figures[1]) == ["left", "right", "ignored"]


@pytest.mark.parametrize(
    "flags", ["--objects", "--objects --classes no cell edge", "--classes a b c d e border"]
)
def test_titles_count_numbered_objects(flags, tmp_path, figures):
    """Whatever the names of the classes are."""
    masks = {}
    for i in range(4):
        mask = np.zeros((60, 60), np.uint8)
        for number in range(i + 2):
            mask[10 * number : 10 * number + 6, 5:20] = number + 1
        masks[f"photo{i}"] = mask
    assert new_project(tmp_path, masks, *flags.split()) == 0
    counts = {}
    for text in figures[0].texts:
        _, name, *count = text.get_text().split(": ")
        counts[name] = count
    are_counted = "--objects" in flags
    assert counts == {f"photo{i}.png": [f"{i + 2} objects"] * are_counted for i in range(4)}


def test_long_titles_keep_both_ends(tmp_path, figures):
    """Roboflow's names end with a hash, others with a number."""
    tail = "_png_jpg.rf.14ba15846394a7834da700e77980dcf6"
    masks = {f"2023_front_of_a_house_{i}{tail}": halves(i, (60, 30)) for i in range(4)}
    assert new_project(tmp_path, masks) == 0
    for image, text in zip(figures[0].images, figures[0].texts, strict=True):
        split, _, name = text.get_text().partition(": ")
        assert split in ("train", "val") and name.startswith("2023_f")
        assert name.endswith("dcf6.png") and "…" in name
        assert len(text.get_text()) <= image.get_size()[1] / 7
