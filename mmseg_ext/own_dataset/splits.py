"""Choose training, validation and test set; copies of a photo and groups stay together."""

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import cv2
import numpy as np

# Of the contrast. Measured: photos that are turned, halved or saved as JPEG of quality 30 differ by
# up to 0.05, photos with 15 % more contrast by 0.1, frames of a standing car by 0.04, and photos of
# different things by 0.15 or more.
_NEAR = 0.05
_SIDE = 16  # pixels of a small version
_ROWS = 64  # images that are compared at once


class _Unit(NamedTuple):
    """Images that stay together, and their labels."""

    names: list[str]
    labels: set[str]


def choose(
    names: Sequence[str],
    labels: Mapping[str, set[str]],
    shares: Mapping[str, float],
    fixed: Mapping[str, str],
    groups: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the split of each name: of `fixed`, or by the hash of the name.

    Each split of `shares` gets its share of the names, at least one, and train gets the rest, at
    least one. Each label gets into all splits if enough names have it. Names with one value in
    `groups` get into one split, which then has its share or less.
    """
    groups = groups or {}
    chosen = {name: fixed[name] for name in names if name in fixed}
    known = {groups[name]: split for name, split in chosen.items() if name in groups}
    chosen |= {n: known[groups[n]] for n in names if n not in chosen and groups.get(n) in known}
    units: dict[tuple[str, bool], _Unit] = defaultdict(lambda: _Unit([], set()))
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if name not in chosen:
            unit = units[groups.get(name, name), name in groups]
            unit.names.append(name)
            unit.labels.update(labels[name])
    for split, share in shares.items():
        own = [name for name, found in chosen.items() if found == split]
        count = max(round(share * len(names)) - len(own), not own)
        free = [unit for unit in units.values() if unit.names[0] not in chosen]
        most = len(free) - ("train" not in chosen.values())
        reached = {label for name in own for label in labels[name]}
        picked = _pick(free, count, most, reached)
        if not own and not picked and most > 0:  # all groups are larger than the share
            picked = [min(free, key=lambda unit: len(unit.names))]
        chosen |= {name: split for unit in picked for name in unit.names}
    return {name: chosen.get(name, "train") for name in names}


def _pick(units: Sequence[_Unit], count: int, most: int, reached: set[str]) -> list[_Unit]:
    """Return up to `most` units with `count` names or less, first those with a new label.

    `reached` are the labels that the split has. The last unit with a label is picked only if no
    other is left.
    """
    left = Counter(label for unit in units for label in unit.labels)
    picked: dict[int, _Unit] = {}

    def candidates() -> Iterator[tuple[int, bool]]:
        for label in sorted(left, key=lambda label: (left[label], label)):  # rare ones first
            for i, unit in enumerate(units):
                if label in unit.labels and label not in reached:
                    yield i, True
        yield from itertools.product(range(len(units)), [True])
        yield from itertools.product(range(len(units)), [False])

    for i, leave_last in candidates():
        unit = units[i]
        is_last = leave_last and any(left[label] == 1 for label in unit.labels)
        if len(unit.names) <= count and len(picked) < most and i not in picked and not is_last:
            picked[i], count, reached = unit, count - len(unit.names), reached | unit.labels
            left.subtract(unit.labels)
    return list(picked.values())


def find_groups(names: Sequence[str], pattern: str) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the numbers of names that share what the * of `pattern` stands for, as `find_copies`.

    It ends at the first place with the text after *: `scene*_` finds 4 in `scene4_1_left`.

    Raises:
        ValueError: if the pattern has not one *, fits no name, or the same part of all names.
    """
    start, star, end = pattern.partition("*")
    if not star or "*" in end:
        raise ValueError(f"--group {pattern}: write one * for the part that names share")
    expression = re.compile(re.escape(start) + ("(.+?)" if end else "(.+)") + re.escape(end))
    parts: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        if fit := expression.search(name):
            parts[fit[1]].append(i)
    if not parts:
        raise ValueError(f"--group {pattern}: fits no name, such as {names[0]!r}")
    for part, numbers in parts.items():
        if len(numbers) == len(names):
            raise ValueError(f"--group {pattern}: stands for {part!r} in all names")
        yield numbers[0], numbers


def connect(count: int, links: Iterable[tuple[int, Sequence[int]]]) -> np.ndarray:
    """Return a group for each of `count` images, (count,); linked images have the same."""
    group = np.arange(count)
    for i, others in links:
        joined = group[[i, *others]]
        group[np.isin(group, joined)] = joined.min()
    return group


def small_version(image: np.ndarray, missing: float | None = None) -> np.ndarray:
    """Return an image (H, W, ...) in gray, 16 x 16, of mean 0 and length 1; 0 if it is flat.

    Values that are `missing` or not finite count as the mean of the others.
    """
    bands = image.reshape(*image.shape[:2], -1)[..., :3]
    if bands.dtype.kind == "f" or missing is not None:
        known = np.isfinite(bands) & (bands != missing)
        bands = np.where(known, bands, bands[known].mean() if known.any() else 0)
    step = (float(bands.max()) - float(bands.min())) / 255
    if bands.dtype == np.uint8 and bands.size > 2**18:  # fast, before there are floats
        bands = cv2.resize(bands, (8 * _SIDE, 8 * _SIDE), interpolation=cv2.INTER_AREA)
    small = cv2.resize(bands.astype(np.float32), (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    small = small.reshape(_SIDE, _SIDE, -1).mean(2)
    small -= small.mean()
    length = np.linalg.norm(small)
    return small / length if step and length > step * _SIDE else np.zeros_like(small)


def find_copies(
    small: Sequence[np.ndarray], first: int | None = None
) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the number of a small version, and of later ones that are nearly equal.

    Also if one is flipped or turned by 90 degrees. Only the `first` ones are compared with later
    ones, by default all.
    """
    if not len(small):
        return
    images = np.stack(small)
    flat = images.reshape(len(images), -1)
    first = len(images) if first is None else first
    for start in range(0, first, _ROWS):
        own = images[start : min(start + _ROWS, first)]
        turned = [np.rot90(v, k, (1, 2)) for v in (own, own[:, :, ::-1]) for k in range(4)]
        rows = np.stack(turned, 1).reshape(-1, flat.shape[1])
        closeness = (rows @ flat[start:].T).reshape(len(own), len(turned), -1)
        for i, near in enumerate(closeness.max(1) > 1 - _NEAR**2 / 2):
            if others := (start + i + 1 + np.flatnonzero(near[i + 1 :])).tolist():
                yield start + i, others
