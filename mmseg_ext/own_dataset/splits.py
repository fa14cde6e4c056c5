"""Choose training, validation and test set, or the sets of a fold.

Images that stay together, such as copies of a photo, are a unit. Units are ordered by the hashes of
their names, so more images change no earlier choice. Units with a label that a split
lacks come first. `splits.json` keeps the choice for further runs.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.errors import join_names
from mmseg_ext.images.files import comparable, read_bytes, same_name
from mmseg_ext.own_dataset.copies import Link
from mmseg_ext.own_dataset.item import SPLIT_WORD, Item, Notes, Rank, key_of, usable

SPLITS_FILE = "splits.json"
_FOLD_TEXT = re.compile(r"([1-9]\d*)/([1-9]\d*)")  # 2/5
_FOLD = "/fold"  # in this file; no image has this name
_COUNTED = re.compile(r"(.+?)([ _.(-]+)\d+\)?")  # foot_1, foot (12), scene3_0001
_YEAR = re.compile(r"(19|20)\d\d")
_ROBOFLOW = re.compile(r"(_[a-z]{3,4})+\.rf\.[0-9a-zA-Z]+$")  # _png_jpg.rf.fdd7958e
_LABEL_STUDIO = re.compile(r"(?<![^/])(?=\d*[a-f])[0-9a-f]{8}-")  # 0a1b2c3d-
# Of frames that follow one another, half are more alike than all but 5 % of frames far from each
# other. Of fewer than ten neighbors most are, or as alike as frames of a fixed camera.
_FEW_NEIGHBORS, _LEAST_NEIGHBORS, _LEAST_ALIKE, _FAR, _FIXED = 10, 3, 0.5, 95, 0.98


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

    # What stays together: groups by names, and copies of a photo, unless these are most photos.
    names = [item.name for item in pool]
    every = [item.name for item in items]
    links, most = [], (1 - sum(shares.values())) * len(pool)
    place = {id(item): i for i, item in enumerate(pool)}
    if rule.group:
        most = len(pool)
        for _, numbers in find_groups(every, rule.group):
            own = [items[i] for i in numbers]
            given = {str(item.split) for item in own if id(item) not in place}
            in_pool = [place[id(item)] for item in own if id(item) in place]
            if len(given) + bool(in_pool) > 1:
                splits = " and ".join(sorted({item.split or "train" for item in own}))
                raise ValueError(
                    f"--group {rule.group}: {own[0].name} and {own[-1].name} are one group, but "
                    f"folders or lists put them in {splits}; put the files of all splits into one "
                    "folder"
                )
            links += [(in_pool[0], in_pool)] if in_pool else []
    for i, others in copies if rule.keeps_copies else ():
        own = [place[id(items[n])] for n in (i, *others) if id(items[n]) in place]
        if len(own) > 1:
            links.append((own[0], own))
    numbers = connect(len(names), links)
    sizes = np.bincount(numbers, minlength=1)
    group_of = zip(names, numbers, strict=True)
    groups = {name: f"/{number}" for name, number in group_of if 1 < sizes[number] <= most}

    labels = {item.name: set(item.texts) for item in pool}
    if fold:
        chosen = choose_fold(names, labels, shares.get("test", 0), earlier, groups, fold)
    else:
        chosen = choose(names, labels, shares, earlier, groups)
    for item in pool:
        item.split = chosen[item.name]
    by_name = {**earlier, **chosen}
    by_name.update((item.name, str(item.split)) for item in items if item.list_file)
    if fold:
        by_name[_FOLD] = fold

    fixed = {split for split in named if split not in divided}
    rows = rule.group if rule.group.isdigit() else ""
    _note_on_names(items, connect(len(items), copies), fixed, rows, notes)
    return by_name


def label_file(data: Path, split: str, name: str) -> Path:
    """Return where the label map of an item is in a project's data."""
    return data / f"annotations/{split}/{name}.png"


def earlier_splits(items: Sequence[Item], data: Path) -> dict[str, str]:
    """Return the splits that earlier runs chose, and their fold."""
    file = data / SPLITS_FILE
    found = {}
    if file.is_file():
        known = json.loads(file.read_text())
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


def _note_on_names(
    items: Sequence[Item],
    copies: np.ndarray,
    fixed: Collection[str | None],
    rows: str,
    notes: Notes,
) -> None:
    """Add a note if parts of one thing are in several splits, whatever chose these.

    Such as x_1 and x_2, photos in the folder clip3, and frames that follow one another. `copies`
    are groups of items that are not counted. `fixed` are splits of folders and lists, and `rows`
    the number of frames that the user keeps together, if any.
    """
    names = [item.name for item in items]
    todo = "keep them in one split with "
    if fixed:
        todo = "the score will be too high: put the files of all splits into one folder, and add "

    def divided(own: Sequence[int]) -> bool:
        return len({items[i].split for i in own}) > 1

    # Names that differ only by a count, such as x, x_1 and x_2; Roboflow adds a format and a hash.
    plain = [_ROBOFLOW.sub("", name) for name in names]
    counted = list(map(_COUNTED.fullmatch, plain))
    stems = {fit[1] for fit in counted if fit}
    by_stem: dict[str, list[int]] = defaultdict(list)
    by_folder: dict[str, list[int]] = defaultdict(list)
    for i, (name, fit) in enumerate(zip(plain, counted, strict=True)):
        by_stem[fit[1] if fit and name not in stems else name].append(i)
        by_folder[names[i].rpartition("/")[0]].append(i)
    for groups, separator in ((by_stem, ""), (by_folder, "/")):
        several = {}
        for key, own in groups.items():
            # Else numbers begin again in each split, or all are copies.
            if len({names[i] for i in own}) == len(own) and len(set(copies[own])) > 1:
                several[key] = own
        if not _are_alike(items, list(several.values())):
            # Without a look at the photos only the name shows that it is one thing.
            several = {key: own for key, own in several.items() if _is_thing(key, own, names)}
        found = [key for key, own in several.items() if divided(own)]
        if len(several) < 2 or not found:
            continue
        examples = {str(items[i].split): names[i] for i in reversed(several[found[0]])}
        text = f"photos of {len(found)} of {len(several)} folders"
        if not separator:
            text = f"{len(found)} of {len(several)} names that recur with a number"
            longest = max((names[i] for i in groups[found[0]]), key=len)
            rest = longest.removeprefix(found[0])  # _1, or Roboflow's _png_jpg.rf.fdd7958e
            separator = re.split(r"\d|(?<=\.rf\.)", rest)[0]
        flag = _find_flag(names, groups, found[0], separator)
        notes.add(
            Rank.SCORE,
            f"{text} are in several splits, such as "
            f"{' and '.join(f'{split}/{name}' for split, name in sorted(examples.items()))}; if "
            f"these show the same thing, {todo}{flag}",
        )
        return

    # Frames of one video: neighbors by number are alike.
    every = []
    for series in _series(names):
        of_number: dict[int, list[int]] = defaultdict(list)  # several if a tool made versions
        for number, i in series:
            of_number[number].append(i)
        if not any(map(divided, of_number.values())):  # else they begin anew in each split
            every.append([versions[0] for versions in of_number.values()])
    neighbors = list(itertools.chain.from_iterable(map(pairwise, every)))
    apart = [pair for pair in neighbors if divided(pair) and len(set(copies[[*pair]])) > 1]
    tested = {i for pair in apart for i in pair if items[i].split != "train"}
    count = sum(item.split != "train" for item in items)
    are_few = len(neighbors) < _FEW_NEIGHBORS  # then even rows have most of their neighbors apart
    if 4 * len(tested) > count and not (are_few and rows) and _are_alike(items, every):
        length = max(2, len(items) // 3) if are_few else max(10, round(len(items) / 20))
        first, second = (f"{items[i].split}/{names[i]}" for i in apart[0])
        notes.add(
            Rank.SCORE,
            f"{len(apart)} photos are in another split than the one before, such as {first} and "
            f"{second}, and look like frames of a video; if they are, {todo}--group {length}, "
            f"which keeps {length} numbers in a row together",
        )


def _are_alike(items: Sequence[Item], groups: Sequence[Sequence[int]]) -> bool:
    """Return whether neighbors in groups are alike, as frames of videos and slices of scans."""
    near, far = [], []  # how alike neighbors are, and images that are far from each other
    every = [i for own in groups for i in own]
    group_of = {i: number for number, own in enumerate(groups) for i in own}
    for own in groups:
        for i, other in pairwise(own):
            near.append(np.sum(items[i].small[0] * items[other].small[0]))
    for place, i in enumerate(every):
        other = every[place - len(every) // 2]
        if len(groups) == 1 or group_of[i] != group_of[other]:
            far.append(np.sum(items[i].small[0] * items[other].small[0]))
    if len(near) < _LEAST_NEIGHBORS or not far:
        return False
    if len(near) < _FEW_NEIGHBORS:
        return bool(np.percentile(near, 25) > min(max(_LEAST_ALIKE, *far), _FIXED))
    return bool(np.median(near) >= max(_LEAST_ALIKE, np.percentile(far, _FAR)))


def _is_thing(key: str, own: Sequence[int], names: Sequence[str]) -> bool:
    """Return whether a stem or a folder seems to name one thing, such as scene4, and no kind.

    A year, as in 2007_000032, is none. Numbers of one or two digits count parts of anything.
    """
    name = key.rpartition("/")[2]
    if any(names[i].startswith(f"{key}/") for i in own):  # a folder
        return any(map(str.isdigit, name)) and not _YEAR.fullmatch(name)
    plain = [_ROBOFLOW.sub("", names[i]) for i in own]
    rests = [name.removeprefix(key) for name in plain]
    if key not in plain and any("(" in rest for rest in rests):
        return False  # img(1), img(2), ... are numbers of a download; x and x (1) are one thing
    if max(map(len, re.findall(r"\d+", " ".join(rests))), default=0) <= 2:
        return True
    return any(map(str.isdigit, name)) and not _YEAR.fullmatch(name)


def _series(names: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return names that differ only by a number: this and the index of each, in its order.

    It is the last number that differs, as in `frame_0012_640x480`, without those that tools add.
    """
    similar: dict[tuple[str, ...], list[tuple[int, list[str]]]] = defaultdict(list)
    for i, name in enumerate(names):
        parts = re.split(r"(\d+)", _LABEL_STUDIO.sub("", _ROBOFLOW.sub("", name)))
        similar[tuple(parts[::2])].append((i, parts))
    every = []
    for own in similar.values():
        columns = list(zip(*(parts for _, parts in own), strict=True))
        place = max((n for n in range(1, len(columns), 2) if len(set(columns[n])) > 1), default=0)
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for i, parts in own if place else ():
            found["".join(parts[:place])].append((int(parts[place]), i))
        every += [sorted(series) for series in found.values() if len(series) > 1]
    return every


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
    return "--split train=FILE val=FILE, lists with a name per line"


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


def find_groups(names: Sequence[str], pattern: str) -> Iterator[Link]:
    """Yield the numbers of names that have the same text for the * of `pattern`, as `find_copies`.

    It ends at the first place with the text after *: `scene*_` finds 4 in `scene4_1_left`. For a
    number such as 20 these are names that differ only by a number, in rows of 20.

    Raises:
        ValueError: if the pattern has not one *, fits no name, or the same part of all names.
    """
    parts: dict[str, list[int]] = defaultdict(list)
    if pattern.isdigit() and int(pattern):
        for series in _series(names):
            steps = np.diff(sorted({number for number, _ in series}))
            step = int(np.median(steps)) if len(steps) else 1  # a video can have every tenth frame
            for number, i in series:
                parts[f"{series[0]}: {number // (step * int(pattern))}"].append(i)
    else:
        start, star, end = pattern.partition("*")
        if not star or "*" in end:
            raise ValueError(
                f"--group {pattern}: write one * for the part that names share, or a number of "
                "frames in a row"
            )
        shared = "(.+?)" if end else "(.+)"
        start, end = comparable(start), comparable(end)
        compared = list(map(comparable, names))
        expression = re.compile(re.escape(start) + shared + re.escape(end))  # scene(.+?)_
        for i, name in enumerate(compared):
            if fit := expression.search(name):
                parts[fit[1]].append(i)
        for i, name in enumerate(compared):  # scene4 without the _ that follows in scene4_1
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
        text = read_bytes(str(file)).decode("utf-8-sig", "replace")
        for line in filter(None, map(str.strip, text.splitlines())):
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
