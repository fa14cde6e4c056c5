"""Find images that are copies of another one, or nearly so, by their small versions.

A small version is the image in gray, 16 x 16, without its brightness and contrast. The product of
two of them is 1 for equal images. Each image has a second one without its flat borders, which
padding adds: a copy that is flipped before it is padded has its border on the other side.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np

from mmseg_ext.own_dataset.item import Item, Notes, Rank

Link = tuple[int, Sequence[int]]  # the number of an image, and of others that are alike

# Of the contrast. Measured: photos that are turned, halved or saved as JPEG of quality 30 differ by
# up to 0.05, photos with 15 % more contrast by 0.1, frames of a standing car by 0.04, and photos of
# different things by 0.15 or more.
_NEAR = 0.05
# Edges of borders are known to half a pixel. Frames of a video have equal borders, so with them
# they are not far.
_NEAR_INSIDE, _FAR = 0.1, 0.2
_EQUAL_OBJECTS = 0.5  # intersection over union of the objects of copies
_SIDE = 16  # pixels of a small version
_ROWS = 64  # images that are compared at once
_NOISE = 8 / 255  # of the contrast; JPEG changes flat borders less
_STRAIGHT = 0.02  # of a side, in which the edge of a border is complete
_COLUMNS = 64  # that are looked at
_LEAST = 0.25  # of a side; a smaller rest, such as one bright line, is like that of other images


def small_version(image: np.ndarray, missing: float | None = None) -> np.ndarray:
    """Return an image (H, W, ...) in gray, with and without its flat borders, (2, 16, 16).

    Both have mean 0 and length 1, or are 0 if they are flat. Values that are `missing` or not
    finite count as the mean of the others.
    """
    bands = image.reshape(*image.shape[:2], -1)[..., :3]
    if bands.dtype.kind == "f" or missing is not None:
        known = np.isfinite(bands) & (bands != missing)
        bands = np.where(known, bands, bands[known].mean() if known.any() else 0)
    contrast = float(bands.max()) - float(bands.min())
    complete, inner = _reduce(bands, contrast), bands
    for _ in range(4):  # top, right, bottom and left, after which the image is upright
        inner = np.rot90(inner[_border(inner, _NOISE * contrast) :])
    is_large = min(np.divide(inner.shape[:2], bands.shape[:2])) >= _LEAST
    is_inside = is_large and inner.shape != bands.shape
    return np.stack([complete, _reduce(inner, contrast) if is_inside else complete])


def _reduce(bands: np.ndarray, contrast: float) -> np.ndarray:
    """Return bands (H, W, C) in gray, (16, 16), of mean 0 and length 1; 0 if they are flat."""
    step = contrast / 255
    if bands.dtype == np.uint8 and bands.size > 2**18:  # fast, before there are floats
        bands = cv2.resize(bands, (8 * _SIDE, 8 * _SIDE), interpolation=cv2.INTER_AREA)
    small = cv2.resize(bands.astype(np.float32), (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    small = small.reshape(_SIDE, _SIDE, -1).mean(2)
    small -= small.mean()
    length = np.linalg.norm(small)
    return small / length if step and length > step * _SIDE else np.zeros_like(small)


def _border(bands: np.ndarray, noise: float) -> int:
    """Return the number of flat rows at the top that end at a straight edge."""
    some = bands[:, :: max(1, bands.shape[1] // _COLUMNS)].astype(np.float32)
    differs = abs(some - some[0, 0]).mean(2) > noise  # of each pixel from the first one
    first = int(differs.any(1).argmax())
    edge = int((differs.mean(1) > 0.5).argmax())  # 0 if there is none
    if edge - first > max(4, _STRAIGHT * len(bands)):  # an object that begins with a few pixels
        return 0
    return edge


def find_copies(small: Sequence[np.ndarray]) -> Iterator[Link]:
    """Yield the number of a small version, and of later ones that are nearly equal.

    Also if one is flipped or turned by 90 degrees.
    """
    if not len(small):
        return
    images = np.stack(small, 1)  # (2, N, 16, 16)
    flat = images.reshape(*images.shape[:2], -1)
    for start in range(0, len(small), _ROWS):
        own = images[:, start : start + _ROWS]
        turned = [np.rot90(v, k, (2, 3)) for v in (own, own[..., ::-1]) for k in range(4)]
        rows = np.stack(turned, 2).reshape(2, -1, flat.shape[2])
        closeness = rows @ flat[:, start:].swapaxes(1, 2)  # (2, rows of turned ones, N - start)
        complete, inside = 2 - 2 * closeness  # squares of distances
        has_other_border = (inside < _NEAR_INSIDE**2) & (complete > _FAR**2)
        is_near = (np.minimum(complete, inside) < _NEAR**2) | has_other_border
        is_near = is_near.reshape(own.shape[1], len(turned), -1).any(1)
        for i, near in enumerate(is_near):
            if others := (start + i + 1 + np.flatnonzero(near[i + 1 :])).tolist():
                yield start + i, others


def find_item_copies(items: Sequence[Item]) -> tuple[list[Link], list[Link]]:
    """Return the copies among items, and the items that are as alike but have other labels.

    Photos of a fixed camera are nearly equal, too, but their objects are at other places.
    """
    copies, cameras = [], []
    for i, others in find_copies([item.small for item in items]):
        are_equal = _have_equal_labels(items[i], [items[other] for other in others])
        for found, wanted in ((copies, True), (cameras, False)):
            own = [n for n, is_equal in zip(others, are_equal, strict=True) if is_equal == wanted]
            if own:
                found.append((i, own))
    return copies, cameras


def small_label(label: np.ndarray) -> np.ndarray:
    """Return the share of objects in a label map (H, W) of small integers, (16, 16), 0 to 1.

    Objects are all pixels without the most frequent label.
    """
    objects = (label != np.bincount(label.ravel()).argmax()).astype(np.float32)
    return cv2.resize(objects, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)


def _have_equal_labels(item: Item, others: Sequence[Item]) -> np.ndarray:
    """Return which of others, that are as alike as copies, have the objects of an item, (N,)."""
    if any(other.small_label is None for other in (item, *others)):
        return np.ones(len(others), bool)
    images = np.stack([other.small[0] for other in others])  # (N, 16, 16)
    labels = np.stack([other.small_label for other in others])
    closeness, equality = np.zeros((2, 8, len(others)))
    for k in range(8):
        image, label = item.small[0], item.small_label
        if k >= 4:
            image, label = image[:, ::-1], label[:, ::-1]
        image, label = np.rot90(image, k), np.rot90(label, k)
        closeness[k] = (images * image).sum((1, 2))
        union = np.maximum(labels, label).sum((1, 2))
        common = np.minimum(labels, label).sum((1, 2))
        equality[k] = np.where(union > 0, common / np.maximum(union, 1e-9), 1)
    # A padded copy is only alike inside of its borders, and has its objects at other places.
    is_near = 2 - 2 * closeness <= _NEAR**2  # (8, N)
    return np.logical_or(~is_near.any(0), (is_near & (equality > _EQUAL_OBJECTS)).any(0))


def add_notes_on_copies(
    items: Sequence[Item],
    copies: Sequence[Link],
    cameras: Sequence[Link],
    notes: Notes,
    are_kept: bool = False,
) -> None:
    """Add a line for each split with copies of training images, and on photos of a fixed camera.

    With `are_kept` a line says that copies which no folder divides are in one split.
    """
    leaked: dict[str, dict[Any, tuple[Item, Item]]] = defaultdict(dict)  # by split and image
    together: dict[Any, tuple[Item, Item]] = {}
    for i, others in copies:
        for n in others:
            original, copy = items[i], items[n]
            if original.split == copy.split:
                together.setdefault(copy.image, (copy, original))
            elif "train" in (original.split, copy.split):
                tested, trained = sorted((copy, original), key=lambda item: item.split == "train")
                leaked[str(tested.split)].setdefault(tested.image, (tested, trained))
    for split, found in leaked.items():
        count = sum(item.split == split for item in items)
        copy, original = next(iter(found.values()))
        notes.add(
            Rank.SCORE,
            f"{split}: {len(found)} of {count} images are copies of training images, also flipped "
            f"or turned: compare {copy.image} and {original.image}; they make the score too high, "
            "so move them into one split",
        )
    if together and are_kept and not leaked:  # a group of most images is divided
        copy, original = next(iter(together.values()))
        notes.add(
            Rank.LABELS,
            f"{len(together)} of {len(items)} images are copies of another one, also flipped or "
            f"turned, such as {copy.image} of {original.image}; these are kept in one split; a new "
            "project with --no-groups, or an edit of data/splits.json, divides them",
        )
    alike = {n for i, others in cameras for n in (i, *others)}
    if alike:
        i, (n, *_) = cameras[0]
        notes.add(
            Rank.HINT,
            f"{len(alike)} of {len(items)} images are as alike as photos of a fixed camera, but "
            f"their labels differ, such as {items[i].image} and {items[n].image}; they can be in "
            "several splits; if the score is to be for another place, use --group",
        )
