"""Choose training, validation and test set, or the sets of a fold.

Images that stay together, such as copies of a photo, are a unit. Units are ordered by the hashes of
their names, so more images change no earlier choice. Units with a label that a split lacks
come first. `splits.json` keeps the choice for further runs.
"""

import hashlib
import itertools
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.errors import join_names
from mmseg_ext.images.files import comparable, read_text, same_name
from mmseg_ext.own_dataset.copies import Link
from mmseg_ext.own_dataset.groups import add_note_on_divided, connect, find_groups
from mmseg_ext.own_dataset.item import SPLIT_WORD, Item, Notes, Rank, key_of, usable

SPLITS_FILE = "splits.json"
_FOLD_TEXT = re.compile(r"([1-9]\d*)/([1-9]\d*)")  # 2/5
_FOLD = "/fold"  # in this file; no image has this name


@dataclass(frozen=True)
class SplitRule:
    """A user's settings of the splits."""

    val_share: float = 0.2
    test_share: float = 0
    group: str = ""  # a pattern or a number; see `find_groups`
    keeps_copies: bool = True  # in one split
    fold: str = ""  # 2/5: the second of five parts is the validation set
    lists: Mapping[str, Path] = field(default_factory=dict)  # files with the names of a split

    def __post_init__(self):
        val, test, fold = self.val_share, self.test_share, _FOLD_TEXT.fullmatch(self.fold)
        if not 0 < val < 1:
            raise ValueError(f"--val {val}: must be between 0 and 1")
        if not 0 <= test < 1 - val:
            raise ValueError(f"--test {test}: must be at least 0 and below {1 - val}")
        if self.fold and (not fold or not 1 <= int(fold[1]) <= int(fold[2]) or int(fold[2]) < 2):
            text = f"--fold {self.fold}: write the part and the number of parts, as 2/5"
            raise ValueError(text)
        for name in self.lists:
            if name not in SPLITS:
                raise ValueError(f"--split {name}: write {'=FILE, '.join(SPLITS)}=FILE")


def choose_splits(
    items: Sequence[Item],
    rule: SplitRule,
    named: Collection[str | None],
    earlier: Mapping[str, str],
    copies: Sequence[Link],
    notes: Notes,
) -> dict[str, str]:
    """Set the splits that no folder and no list names; the `earlier` choices stay.

    `named` are the splits that folders and lists name. If val is not among them, the train that
    they name is divided. Return what further runs need: the splits by name, and the fold.

    Raises:
        ValueError: if a group is in several splits that folders or lists name, if there is no
            split to choose, but a fold, or if an earlier run had another fold; see `find_groups`.
    """
    shares = {}
    for split, share in (("test", rule.test_share), ("val", rule.val_share)):
        if share and split not in named:
            shares[split] = share
    divided = (None, "train") if shares else (None,)
    pool = [item for item in items if item.split in divided]
    before = earlier.get(_FOLD, "")
    if earlier and rule.fold not in ("", before):
        has = f"the fold {before}" if before else "no folds"
        raise ValueError(f"--fold {rule.fold}: the project has {has}; make one for each fold")
    fold = rule.fold or before
    if fold:
        if "val" not in shares:
            raise ValueError(f"--fold {fold}: a folder or a list val is the validation set")
        shares["val"] = 1 / int(fold.partition("/")[2])

    most = (1 - sum(shares.values())) * len(pool)
    groups = _groups_of(items, divided, rule, copies, most)
    names = [item.name for item in pool]
    labels = {item.name: set(item.texts) for item in pool}
    if fold:
        chosen = choose_fold(names, labels, shares.get("test", 0), earlier, groups, fold)
    else:
        chosen = choose(names, labels, shares, earlier, groups)
    for item in pool:
        item.split = chosen[item.name]
    if earlier and not fold:  # flags of a further run can ask for other shares
        wanted = Counter(choose(names, labels, shares, {}, groups).values())
        kept = Counter(chosen.values())
        for split in shares:
            if not wanted[split] / 2 <= kept[split] <= wanted[split] * 2:
                found = f"{split} has {kept[split]} of {len(pool)} images, as after earlier runs"
                todo = f"for other splits edit data/{SPLITS_FILE}, or make a new project"
                notes.add(Rank.TRAINING, f"{found}; {todo}")
    by_name = {**earlier, **chosen}
    by_name.update((item.name, str(item.split)) for item in items if item.list_file)
    if fold:
        by_name[_FOLD] = fold

    fixed = {split for split in named if split not in divided}
    rows = rule.group if rule.group.isdigit() else ""
    add_note_on_divided(items, connect(len(items), copies), fixed, rows, notes)
    return by_name


def _groups_of(
    items: Sequence[Item],
    divided: Collection[str | None],
    rule: SplitRule,
    copies: Sequence[Link],
    most: float,
) -> dict[str, str]:
    """Return the group of each name in the `divided` splits that stays with others.

    These are the groups of the user's pattern, and copies of a photo. Without a pattern a group of
    more than `most` images is none.
    """
    pool = [i for i, item in enumerate(items) if item.split in divided]
    together: list[Sequence[int]] = [(i, *others) for i, others in copies if rule.keeps_copies]
    if rule.group:
        most = len(pool)
        for _, numbers in find_groups([item.name for item in items], rule.group):
            together.append(numbers)
            splits = {items[i].split for i in numbers}
            if len(splits.difference(divided)) + bool(splits.intersection(divided)) > 1:
                named = " and ".join(sorted({split or "train" for split in splits}))
                raise ValueError(
                    f"--group {rule.group}: {items[numbers[0]].name} and {items[numbers[-1]].name} "
                    f"are one group, but folders or lists put them in {named}; put the files of "
                    "all splits into one folder"
                )
    own = [[i for i in numbers if items[i].split in divided] for numbers in together]
    group = connect(len(items), [(numbers[0], numbers) for numbers in own if numbers])
    sizes = np.bincount(group, minlength=1)
    return {items[i].name: f"/{group[i]}" for i in pool if 1 < sizes[group[i]] <= most}


def label_file(data: Path, split: str, name: str) -> Path:
    """Return where the label map of an item is in a project's data."""
    return data / f"annotations/{split}/{name}.png"


def earlier_splits(items: Sequence[Item], data: Path) -> dict[str, str]:
    """Return the splits that earlier runs chose, and their fold.

    Raises:
        ValueError: if the file, which users edit, has anything else.
    """
    file = data / SPLITS_FILE
    found = {}
    if file.is_file():
        try:
            known = dict(json.loads(read_text(file)))
        except (ValueError, TypeError) as error:
            todo = "correct it, or delete it to keep the splits of the last run"
            raise ValueError(f"{file}: has no splits ({error}); {todo}") from error
        for name, split in known.items():
            if name != _FOLD and split not in SPLITS:
                raise ValueError(f"{file}: {name} is in {split}; write {', '.join(SPLITS)}")
        for item in items:  # a copy on another system can have the name in another form
            name = same_name(item.name, known)
            if name in known:
                found[item.name] = known[name]
        return known | found
    for item in items:  # a version without the file wrote label maps, too
        for split in reversed(SPLITS):  # the first one counts
            if label_file(data, split, item.name).is_file():
                found[item.name] = split
    return found


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
    frequency = Counter(itertools.chain.from_iterable(unit.labels for unit in units))

    def rarity(unit: _Unit) -> tuple[int, str]:
        return min(((frequency[label], label) for label in unit.labels), default=(0, ""))

    # Rare labels come first, and their large units before small ones. A unit gets into the part
    # with the fewest names of its rarest label, and of these into the smallest part.
    parts: list[list[str]] = [[] for _ in range(count)]
    shown: list[Counter[str]] = [Counter() for _ in range(count)]  # names with each label
    for unit in sorted(units, key=lambda unit: (rarity(unit), -len(unit.names))):
        rarest = rarity(unit)[1]
        i = min(range(count), key=lambda i: (shown[i][rarest], len(parts[i])))
        parts[i] += unit.names
        shown[i].update(dict.fromkeys(unit.labels, len(unit.names)))
    return chosen | dict.fromkeys(parts[number - 1], "val") | _keep(names, fixed, groups)


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


def _lists_of_voc(images: Path) -> dict[str, Path]:
    """Return the list of each split in VOC's layout, whose root `images` is or is in."""
    lists = {}
    for folder in (images, *images.absolute().parents[:2]):  # VOC2012/JPEGImages/*.jpg
        for file in sorted(folder.glob("ImageSets/Segmentation/*.txt")):
            if found := SPLIT_WORD.fullmatch(file.stem):  # Validation.txt, not trainval.txt
                shown = file if images.is_absolute() else Path(os.path.relpath(file))
                lists.setdefault(found[1].lower(), shown)
    return lists


def apply_lists(
    items: Sequence[Item],
    given: Mapping[str, Path],
    folder: Path,
    earlier: Mapping[str, str],
    notes: Notes,
) -> None:
    """Set the splits of listed items; others get a problem if there is a list for train.

    The lists are VOC's around `folder`, if none are given. Items in no list of
    several are perhaps a test set. Splits of `earlier` runs stay.

    Raises:
        UnreadableFileError: if a list cannot be read.
        ValueError: if one has an image of another one, or a given one fits no item.
    """
    lists = given or _lists_of_voc(folder)
    items = usable(items)
    by_name: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_name[comparable(_parts(item.image)[-1])].append(item)
    kept = []
    for split, file in lists.items():
        listed, unknown = [], []
        for line in filter(None, map(str.strip, read_text(file).splitlines())):
            found = _find(line, by_name)
            if len(found) == 1:
                listed += found
            else:
                unknown.append(line)
        some = f"{len(unknown)} names fit no image or several, such as {join_names(unknown)}"
        note = f"{file}: {len(listed)} images are in {split}" + (f"; {some}" if unknown else "")
        if given and not listed:
            raise ValueError(f"{note}; write a name per line, such as {items[0].image.stem}")
        if listed or unknown:  # else it is empty
            notes.add(Rank.HINT, note)
        repeated = [item for item in listed if item.list_file not in (None, file)]
        if repeated:
            text = f"{len(repeated)} images, such as {repeated[0].image.name}, are also in"
            raise ValueError(
                f"{file}: {text} {repeated[0].list_file}; drop them in one of these, or give "
                "other lists with --split train=FILE val=FILE"
            )
        for item in listed:
            item.split, item.list_file = earlier.get(item.name, split), file
            if item.split != split:
                kept.append(item.name)
    if any(item.list_file == lists.get("train", "") for item in items):
        for item in items:
            if not item.list_file:
                item.problem = f"{item.image}: is in no list of a split"
    if kept:
        text = f"{len(kept)} images stay in the split of an earlier run: {join_names(kept)}"
        notes.add(Rank.HINT, text)


def _find(line: str, by_name: Mapping[str, Sequence[Item]]) -> Sequence[Item]:
    """Return the items with the name in a line; if there are several, those in its folders."""
    for text in (line, line.split()[0]):  # "my photo.jpg", or "a.jpg a.png"
        path = _parts(Path(text.replace("\\", "/")))
        found = by_name.get(comparable(path[-1]), ())
        if len(found) > 1:  # those in its folders; of these perhaps only one in the same case
            ends = {item.image: "/".join(_parts(item.image)[-len(path) :]) for item in found}
            end = same_name("/".join(path), list(ends.values()))
            found = [item for item in found if ends[item.image] == end]
        if found:
            return found
    return []


def _parts(path: Path) -> tuple[str, ...]:
    return (*path.parts[:-1], key_of(Path(path.name)).name)  # without a suffix
