"""Choose training, validation and test set.

Images that stay together, such as copies of a photo, are a unit. Units are ordered by the hashes of
their names, so more images change no earlier choice. Units with a label that a split
lacks come first. `splits.json` keeps the choice for further runs.
"""

import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmseg_ext.atomic_write import write_text
from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.own_dataset.annotations.reader import Legend
from mmseg_ext.own_dataset.conversion import ReadPair, label_file
from mmseg_ext.own_dataset.copies import find_copies

_SPLITS_FILE = "splits.json"

Link = tuple[int, Sequence[int]]  # the number of an image, and those of others that stay with it


@dataclass
class Splits:
    """The splits of the pairs of a project."""

    of_pairs: list[str]
    by_name: dict[str, str]  # the chosen ones, also of earlier runs; not those that folders name
    notes: list[str]


def choose_splits(
    read: Sequence[ReadPair], legend: Legend, shares: Mapping[str, float], group: str, data: Path
) -> Splits:
    """Choose the splits that no folder names; the choices in `splits.json` stay.

    `shares` are of splits without a folder. If there are any, the folder of train is divided.

    Raises:
        ValueError: if there is no split to choose, but a pattern `group`; see `find_groups`.
    """
    divided = (None, "train") if shares else (None,)
    pool = [part for part in read if part.pair.split in divided]
    if group and not pool:
        raise ValueError(f"--group {group}: the folders train and val are the splits")
    names, labels, small = [], {}, []
    for part in pool:
        names.append(part.pair.name)
        labels[part.pair.name] = set(map(legend.texts.__getitem__, part.annotation.values))
        small.append(part.photo.small)
    copies = list(find_copies(small))
    links, most = list(copies), (1 - sum(shares.values())) * len(pool)
    if group:
        links += find_groups(names, group)
        most = len(pool)
    fixed = _earlier_splits(names, data)
    chosen = choose(names, labels, shares, fixed, _groups(names, links, most))
    of_pairs = []
    for part in read:
        is_chosen = part.pair.split in divided
        of_pairs.append(chosen[part.pair.name] if is_chosen else part.pair.split)
    return Splits(of_pairs, fixed | chosen, _notes_on_copies(pool, copies, chosen))


def write_splits(splits: Splits, data: Path) -> None:
    """Write the chosen splits for further runs."""
    if splits.by_name:
        write_text(json.dumps(splits.by_name, indent=1), data / _SPLITS_FILE)


def _groups(names: Sequence[str], links: Sequence[Link], most: float) -> dict[str, str]:
    """Return a group for each name that has others and is in a group of at most so many."""
    numbers = connect(len(names), links)
    sizes = np.bincount(numbers, minlength=1)
    groups = {}
    for name, number in zip(names, numbers, strict=True):
        if 1 < sizes[number] <= most:
            groups[name] = str(number)
    return groups


def _earlier_splits(names: Sequence[str], data: Path) -> dict[str, str]:
    """Return the splits that earlier runs chose."""
    file = data / _SPLITS_FILE
    if file.is_file():
        return json.loads(file.read_text())
    found = {}
    for name in names:  # a version without the file wrote label maps, too
        for split in reversed(SPLITS):  # the first one counts
            if label_file(data, split, name).is_file():
                found[name] = split
    return found


def _notes_on_copies(
    pool: Sequence[ReadPair], copies: Sequence[Link], chosen: Mapping[str, str]
) -> list[str]:
    """Return a note if images of one split are copies of each other."""
    alike = []
    for first, others in copies:
        for other in others:
            if chosen[pool[first].pair.name] == chosen[pool[other].pair.name]:
                alike.append((other, first))
    if not alike:
        return []
    other, first = alike[0]
    count = len(dict(alike))  # each copy once
    return [
        f"{count} of {len(pool)} images are copies of another one or nearly so, also flipped or "
        f"turned, such as {pool[other].pair.image} of {pool[first].pair.image}; copies are kept in "
        "one split"
    ]


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
    chosen = _keep(names, fixed, groups)
    units = _make_units(set(names) - chosen.keys(), labels, groups)
    for split, share in shares.items():
        own = [name for name, found in chosen.items() if found == split]
        least = 0 if own else 1
        count = max(round(share * len(names)) - len(own), least)
        free = [unit for unit in units if unit.names[0] not in chosen]
        left_for_train = 0 if "train" in chosen.values() else 1
        most = len(free) - left_for_train
        picked = _pick(free, count, most, set().union(*map(labels.__getitem__, own)))
        if not own and not picked and most > 0:  # all groups are larger than the share
            picked = [min(free, key=lambda unit: len(unit.names))]
        for unit in picked:
            chosen.update(dict.fromkeys(unit.names, split))
    return dict.fromkeys(names, "train") | chosen


def _keep(
    names: Sequence[str], fixed: Mapping[str, str], groups: Mapping[str, str]
) -> dict[str, str]:
    """Return the fixed splits of names, and of names whose group has a fixed one."""
    chosen, split_of_group = {}, {}
    for name in names:
        if name in fixed:
            chosen[name] = fixed[name]
            split_of_group[groups.get(name)] = fixed[name]
    split_of_group.pop(None, None)  # of names without a group
    for name in names:
        if name not in chosen and groups.get(name) in split_of_group:
            chosen[name] = split_of_group[groups[name]]
    return chosen


def _make_units(
    names: Collection[str], labels: Mapping[str, set[str]], groups: Mapping[str, str]
) -> list[_Unit]:
    """Return the groups of names, and the other names, in the order of their hashes."""
    units: dict[tuple[str, bool], _Unit] = defaultdict(lambda: _Unit([], set()))
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        unit = units[groups.get(name, name), name in groups]
        unit.names.append(name)
        unit.labels.update(labels[name])
    return list(units.values())


def _pick(units: Sequence[_Unit], count: int, most: int, reached: set[str]) -> list[_Unit]:
    """Return up to `most` units with `count` names or less, first those with a new label.

    `reached` are the labels that the split has. The last unit with a label is picked only if no
    other is left.
    """
    left: Counter[str] = Counter()  # units with each label
    for unit in units:
        left.update(unit.labels)
    reached = set(reached)
    picked: dict[int, _Unit] = {}
    for i, leave_last in _candidates(units, left, reached):
        unit = units[i]
        is_last = leave_last and any(left[label] == 1 for label in unit.labels)
        has_room = len(unit.names) <= count and len(picked) < most
        if has_room and i not in picked and not is_last:
            picked[i] = unit
            count -= len(unit.names)
            reached |= unit.labels
            left.subtract(unit.labels)
    return list(picked.values())


def _candidates(
    units: Sequence[_Unit], left: Mapping[str, int], reached: set[str]
) -> Iterator[tuple[int, bool]]:
    """Yield the indices of units, and whether the last unit with a label is to be left.

    The units with a label that is not `reached` come first, rare labels before frequent ones. A
    label that is reached in the meantime counts no more.
    """
    for label in sorted(left, key=lambda label: (left[label], label)):
        for i, unit in enumerate(units):
            if label in unit.labels and label not in reached:
                yield i, True
    yield from itertools.product(range(len(units)), [True])
    yield from itertools.product(range(len(units)), [False])


def find_groups(names: Sequence[str], pattern: str) -> Iterator[Link]:
    """Yield the numbers of names that have the same text for the * of `pattern`, as `find_copies`.

    It ends at the first place with the text after *: `scene*_` finds 4 in `scene4_1_left`.

    Raises:
        ValueError: if the pattern has not one *, fits no name, or the same part of all names.
    """
    start, star, end = pattern.partition("*")
    if not star or "*" in end:
        raise ValueError(f"--group {pattern}: write one * for the part that names share")
    shared = "(.+?)" if end else "(.+)"
    expression = re.compile(re.escape(start) + shared + re.escape(end))  # scene(.+?)_
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


def connect(count: int, links: Iterable[Link]) -> np.ndarray:
    """Return a group for each of `count` images, (count,); linked images have the same."""
    group = np.arange(count)
    for i, others in links:
        joined = group[[i, *others]]
        group[np.isin(group, joined)] = joined.min()
    return group
