"""Which photos show one thing, by their names: groups of the user, and notes on divided ones.

Such photos are x_1 and x_2, those in the folder clip3, and frames that follow one another.
"""

import contextlib
import itertools
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from mmseg_ext.images.files import comparable
from mmseg_ext.own_dataset.copies import Link
from mmseg_ext.own_dataset.item import Item, Notes, Rank

_COUNTED = re.compile(r"(.+?)([ _.(-]+)\d+\)?")  # foot_1, foot (12), scene3_0001
_YEAR = re.compile(r"(19|20)\d\d")
_ROBOFLOW = re.compile(r"(_[a-z]{3,4})+\.rf\.[0-9a-zA-Z]+$")  # _png_jpg.rf.fdd7958e
_LABEL_STUDIO = re.compile(r"(?<![^/])(?=\d*[a-f])[0-9a-f]{8}-")  # 0a1b2c3d-
# Of frames that follow one another, half are more alike than all but 5 % of frames far from each
# other. Of fewer than ten neighbors most are, or as alike as frames of a fixed camera.
_FEW_NEIGHBORS, _LEAST_NEIGHBORS, _LEAST_ALIKE, _FAR, _FIXED = 10, 3, 0.5, 95, 0.98


def find_groups(names: Sequence[str], pattern: str) -> Iterator[Link]:
    """Yield the numbers of names that have the same text for the * of `pattern`.

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


def add_note_on_divided(
    items: Sequence[Item],
    copies: np.ndarray,
    fixed: Collection[str | None],
    rows: str,
    notes: Notes,
) -> None:
    """Add a note if parts of one thing are in several splits, whatever chose these.

    `copies` are groups of items that are not counted. `fixed` are splits of folders and lists, and
    `rows` the number of frames that the user keeps together, if any.
    """
    todo = "keep them in one split with "
    if fixed:
        todo = "the score will be too high: put the files of all splits into one folder, and add "
    text = _divided_names(items, copies, todo) or _divided_frames(items, copies, rows, todo)
    notes.add(Rank.SCORE, text)


def _divided_names(items: Sequence[Item], copies: np.ndarray, todo: str) -> str:
    """Return a line on things whose photos are in several splits, by their names; else ""."""
    names = [item.name for item in items]
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
        found = [key for key, own in several.items() if _is_divided(items, own)]
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
        return (
            f"{text} are in several splits, such as "
            f"{' and '.join(f'{split}/{name}' for split, name in sorted(examples.items()))}; if "
            f"these show the same thing, {todo}{flag}"
        )
    return ""


def _divided_frames(items: Sequence[Item], copies: np.ndarray, rows: str, todo: str) -> str:
    """Return a line on frames of a video in another split than the frame before; else ""."""
    names = [item.name for item in items]
    every = []
    for series in _series(names):
        of_number: dict[int, list[int]] = defaultdict(list)  # several if a tool made versions
        for number, i in series:
            of_number[number].append(i)
        # Else they begin anew in each split.
        if not any(_is_divided(items, versions) for versions in of_number.values()):
            every.append([versions[0] for versions in of_number.values()])
    neighbors = list(itertools.chain.from_iterable(map(pairwise, every)))
    apart = [
        pair for pair in neighbors if _is_divided(items, pair) and len(set(copies[[*pair]])) > 1
    ]
    tested = {i for pair in apart for i in pair if items[i].split != "train"}
    count = sum(item.split != "train" for item in items)
    are_few = len(neighbors) < _FEW_NEIGHBORS  # then even rows have most of their neighbors apart
    if 4 * len(tested) > count and not (are_few and rows) and _are_alike(items, every):
        length = max(2, len(items) // 3) if are_few else max(10, round(len(items) / 20))
        first, second = (f"{items[i].split}/{names[i]}" for i in apart[0])
        return (
            f"{len(apart)} photos are in another split than the one before, such as {first} and "
            f"{second}, and look like frames of a video; if they are, {todo}--group {length}, "
            f"which keeps {length} numbers in a row together"
        )
    return ""


def _is_divided(items: Sequence[Item], numbers: Sequence[int]) -> bool:
    return len({items[i].split for i in numbers}) > 1


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
