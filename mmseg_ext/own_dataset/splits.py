"""Choose training, validation and test set, or one of several folds.

Images that stay together, such as copies of a photo, are a unit. Units are ordered by the hashes of
their names, so more images change no earlier choice. Units with a label that a split
lacks come first. `splits.json` keeps the choice for further runs.
"""

import contextlib
import hashlib
import itertools
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmseg_ext.atomic_write import write_text
from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.errors import join_names
from mmseg_ext.own_dataset.annotations.reader import Legend
from mmseg_ext.own_dataset.conversion import ReadPair, label_file
from mmseg_ext.own_dataset.copies import find_copies
from mmseg_ext.own_dataset.pairs import Pair

_SPLITS_FILE = "splits.json"
_FOLD = "/fold"  # in this file; no image has this name
_COUNTED = re.compile(r"(.+?)([ _.(-]+)\d{1,2}\)?")  # foot_1, foot (12)
_ROBOFLOW = re.compile(r"(_[a-z]{3,4})+\.rf\.[0-9a-zA-Z]+$")  # _png_jpg.rf.fdd7958e
# Of frames that follow one another, half are more alike than all but 5 % of different folders'.
_LEAST_NEIGHBORS, _FAR = 10, 95

Link = tuple[int, Sequence[int]]  # the number of an image, and those of others that stay with it


@dataclass(frozen=True)
class SplitRule:
    """A user's settings of the splits."""

    val_share: float = 0.2
    test_share: float = 0
    group: str = ""  # a pattern; see `find_groups`
    fold: str = ""  # 2/5: the second of five parts is the validation set
    lists: Mapping[str, Path] = field(default_factory=dict)  # files with the names of a split


def choose_splits(
    read: Sequence[ReadPair],
    legend: Legend,
    shares: dict[str, float],
    rule: SplitRule,
    earlier: Mapping[str, str],
) -> tuple[dict[str, str], list[str]]:
    """Set the splits that no folder and no list names; the `earlier` choices stay.

    Return what further runs need, the splits by name and the fold, and notes.

    `shares` are of splits without a folder or a list. If there are any, the train that these name
    is divided.

    Raises:
        ValueError: if there is no split to choose, but a pattern or a fold, or if an earlier run
            had another fold; see also `find_groups`.
    """
    divided = (None, "train") if shares else (None,)
    pool = [part for part in read if part.pair.split in divided]
    given = [part for part in read if part.pair.split not in divided]
    fold = _fold(rule, earlier)
    if fold and "val" not in shares:
        raise ValueError(f"--fold {fold}: a folder or a list val is the validation set")
    if rule.group and not pool:
        raise ValueError(f"--group {rule.group}: the folders or lists train and val are the splits")
    names, labels, small = [], {}, []
    for part in pool:
        names.append(part.pair.name)
        labels[part.pair.name] = set(map(legend.texts.__getitem__, part.annotation.values))
        small.append(part.small)
    if fold:
        shares["val"] = 1 / int(fold.partition("/")[2])
    copies = list(find_copies(small))
    links, most = list(copies), (1 - sum(shares.values())) * len(pool)
    if rule.group:
        links += find_groups(names, rule.group)
        most = len(pool)
    groups = _groups(names, links, most)
    if fold:
        chosen = choose_fold(names, labels, shares.get("test", 0), earlier, groups, fold)
    else:
        chosen = choose(names, labels, shares, earlier, groups)
    for part in pool:
        part.pair.split = chosen[part.pair.name]
    by_name = {**earlier, **chosen}
    for part in read:
        if part.pair.list_file:
            by_name[part.pair.name] = str(part.pair.split)
    if fold:
        by_name[_FOLD] = fold
    notes = []
    copy_of = {other: i for i, others in copies for other in others if names[other] in groups}
    if copy_of:
        other, first = next(iter(copy_of.items()))
        notes.append(
            f"{len(copy_of)} of {len(pool)} images are copies of another one, also flipped or "
            f"turned, or nearly as alike, such as {pool[other].pair.image} of "
            f"{pool[first].pair.image}; these are kept in one split"
        )
    if not rule.group:
        notes += _note_on_names(names, connect(len(names), copies))
        notes += _note_on_videos(names, small)
    notes += _note_on_given_splits(given)
    return by_name, notes


def _fold(rule: SplitRule, earlier: Mapping[str, str]) -> str:
    """Return the fold of the rule or of an earlier run, which must be the same."""
    before = earlier.get(_FOLD, "")
    if earlier and rule.fold not in ("", before):
        has = f"the fold {before}" if before else "no folds"
        raise ValueError(f"--fold {rule.fold}: the project has {has}; make one for each fold")
    return rule.fold or before


def write_splits(by_name: Mapping[str, str], data: Path) -> None:
    """Write the chosen splits for further runs."""
    if by_name:
        write_text(json.dumps(by_name, indent=1), data / _SPLITS_FILE)


def _groups(names: Sequence[str], links: Sequence[Link], most: float) -> dict[str, str]:
    """Return a group for each name that has others and is in a group of at most so many."""
    numbers = connect(len(names), links)
    sizes = np.bincount(numbers, minlength=1)
    groups = {}
    for name, number in zip(names, numbers, strict=True):
        if 1 < sizes[number] <= most:
            groups[name] = f"/{number}"  # no name
    return groups


def earlier_splits(pairs: Sequence[Pair], data: Path) -> dict[str, str]:
    """Return the splits that earlier runs chose, and their fold."""
    file = data / _SPLITS_FILE
    if file.is_file():
        return json.loads(file.read_text())
    found = {}
    for pair in pairs:  # a version without the file wrote label maps, too
        for split in reversed(SPLITS):  # the first one counts
            if label_file(data, split, pair.name).is_file():
                found[pair.name] = split
    return found


def _names_by_stem(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of names that differ only by a count, such as x, x_1 and x_2.

    Roboflow adds the format and a hash, also to several versions of a photo.
    """
    plain = [_ROBOFLOW.sub("", name) for name in names]
    found = list(map(_COUNTED.fullmatch, plain))
    stems = {fit[1] for fit in found if fit}
    by_stem: dict[str, list[int]] = defaultdict(list)
    for i, (name, fit) in enumerate(zip(plain, found, strict=True)):
        by_stem[fit[1] if fit and name not in stems else name].append(i)
    return by_stem


def _note_on_names(names: Sequence[str], copies: np.ndarray) -> list[str]:
    """Return a note if names recur with numbers, as x, x_1 and x_2, that are not all copies."""
    by_stem = _names_by_stem(names)
    several = [stem for stem, own in by_stem.items() if len(set(copies[own])) > 1]
    if len(several) < 2:
        return []
    examples = [names[i] for i in by_stem[several[0]]]
    return [
        f"{len(several)} names recur with a number, such as {join_names(examples, 3)}; if these "
        f"show the same thing, keep them in one split with {_flag_for(names, by_stem, several[0])}"
    ]


def _note_on_given_splits(given: Sequence[ReadPair]) -> list[str]:
    """Return a note if names that recur with numbers are in several folders or lists of splits."""
    names = [part.pair.name for part in given]
    by_stem = _names_by_stem(names)
    divided = []
    for stem, own in by_stem.items():
        is_numbered_once = len({names[i] for i in own}) == len(own)  # not anew in each split
        if is_numbered_once and len({given[i].pair.split for i in own}) > 1:
            divided.append(stem)
    if len(divided) < 2:
        return []
    examples = [f"{given[i].pair.split}/{names[i]}" for i in by_stem[divided[0]]]
    return [
        f"{len(divided)} names recur with a number in several splits, such as "
        f"{join_names(examples, 3)}; if these show the same thing, the score will be too high: put "
        f"the files of all splits into one folder, and add {_flag_for(names, by_stem, divided[0])}"
    ]


def _note_on_videos(names: Sequence[str], small: Sequence[np.ndarray]) -> list[str]:
    """Return a note if neighbors in folders are alike, as frames of videos and slices of scans."""
    folder = [name.rpartition("/")[0] for name in names]
    folders: dict[str, list[int]] = defaultdict(list)
    near, far = [], []  # how alike neighbors are, and images of different folders
    for i in range(len(names)):
        other = i - len(names) // 2
        folders[folder[i]].append(i)
        if i and folder[i] == folder[i - 1]:
            near.append(np.sum(small[i][0] * small[i - 1][0]))
        if folder[i] != folder[other]:
            far.append(np.sum(small[i][0] * small[other][0]))
    if len(near) < _LEAST_NEIGHBORS or not far or np.median(near) < np.percentile(far, _FAR):
        return []
    return [
        f"photos in {len(folders)} folders look like frames of videos; if they are, keep each "
        f"folder in one split with {_find_flag(names, folders, folder[0], '/')}"
    ]


def _flag_for(names: Sequence[str], by_stem: Mapping[str, Sequence[int]], stem: str) -> str:
    """Return the flag for `new_project` that keeps the names of each stem together."""
    longest = max((names[i] for i in by_stem[stem]), key=len)
    rest = longest.removeprefix(stem)  # _1, or Roboflow's _png_jpg.rf.fdd7958e
    separator = re.split(r"\d|(?<=\.rf\.)", rest)[0]
    return _find_flag(names, by_stem, stem, separator)


def _find_flag(
    names: Sequence[str], groups: Mapping[str, Sequence[int]], stem: str, separator: str
) -> str:
    """Return the flag for `new_project` that divides all names into groups, as by this stem."""
    wanted = connect(len(names), ((own[0], own) for own in groups.values()))
    before, between, last = stem.rpartition(separator)  # IMG, _ and 0012
    for start in ("", before + between, stem.rpartition("/")[2].rstrip("0123456789")):
        for end in (separator, between + last + separator):
            pattern = f"{start}*{end}"  # IMG_*_
            with contextlib.suppress(ValueError):  # it fits no name, or the same part of all
                found = connect(len(names), find_groups(names, pattern))
                if np.array_equal(found, wanted):
                    return f"--group {shlex.quote(pattern)}"
    return "--split"


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


def choose_fold(
    names: Sequence[str],
    labels: Mapping[str, set[str]],
    test_share: float,
    fixed: Mapping[str, str],
    groups: Mapping[str, str],
    fold: str,
) -> dict[str, str]:
    """Return the split of each name, as `choose`, with val as the part `fold` (2/5) of all parts.

    The parts divide all names that are not in test. They depend on the names only, so the folds of
    several projects are parts of one division.

    Raises:
        ValueError: if there are fewer names or groups than parts.
    """
    number, count = map(int, fold.split("/"))
    test = {"test": test_share} if test_share else {}
    chosen = choose(names, labels, test, fixed, groups)
    units = _make_units([name for name in names if chosen[name] != "test"], labels, groups)
    if len(units) < count:
        raise ValueError(f"--fold {fold}: there are only {len(units)} images or groups to divide")
    own = _divide(units, count)[number - 1]
    return chosen | dict.fromkeys(own, "val") | _keep(names, fixed, groups)


def _divide(units: Sequence[_Unit], count: int) -> list[list[str]]:
    """Return the names of each of `count` parts, which are as equal as units allow.

    Rare labels come first, and their large units before small ones. A unit gets into the part with
    the fewest names of its rarest label, and of these into the smallest part.
    """
    frequency = Counter(itertools.chain.from_iterable(unit.labels for unit in units))

    def rarity(unit: _Unit) -> tuple[int, str]:
        return min(((frequency[label], label) for label in unit.labels), default=(0, ""))

    parts: list[list[str]] = [[] for _ in range(count)]
    labels: list[Counter[str]] = [Counter() for _ in range(count)]  # names with each label
    for unit in sorted(units, key=lambda unit: (rarity(unit), -len(unit.names))):
        rarest = rarity(unit)[1]
        i = min(range(count), key=lambda i: (labels[i][rarest], len(parts[i])))
        parts[i] += unit.names
        labels[i].update(dict.fromkeys(unit.labels, len(unit.names)))
    return parts


def _keep(
    names: Sequence[str], fixed: Mapping[str, str], groups: Mapping[str, str]
) -> dict[str, str]:
    """Return the fixed splits of names, and of names whose group has a fixed one."""
    of_group = {groups.get(name, name): fixed[name] for name in names if name in fixed}
    chosen = {}
    for name in names:
        if groups.get(name, name) in of_group:
            chosen[name] = fixed.get(name, of_group[groups.get(name, name)])
    return chosen


def _make_units(
    names: Collection[str], labels: Mapping[str, set[str]], groups: Mapping[str, str]
) -> list[_Unit]:
    """Return the groups of names, and the other names, in the order of their hashes."""
    units: dict[str, _Unit] = defaultdict(lambda: _Unit([], set()))
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        unit = units[groups.get(name, name)]
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
    picked: dict[str, _Unit] = {}  # by their first names

    def pick(unit: _Unit, keep_last: bool) -> None:
        nonlocal count
        is_kept = keep_last and any(left[label] == 1 for label in unit.labels)
        has_room = len(unit.names) <= count and len(picked) < most
        if has_room and not is_kept and unit.names[0] not in picked:
            picked[unit.names[0]] = unit
            count -= len(unit.names)
            reached.update(unit.labels)
            left.subtract(unit.labels)

    for label in sorted(left, key=lambda label: (left[label], label)):  # rare ones first
        for unit in units:
            if label in unit.labels and label not in reached:
                pick(unit, keep_last=True)
    for keep_last in (True, False):
        for unit in units:
            pick(unit, keep_last)
    return list(picked.values())


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
    for i, name in enumerate(names):  # scene4 without the _ that follows in scene4_1
        if name.startswith(start) and name.removeprefix(start) in parts:
            parts[name.removeprefix(start)].append(i)
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
