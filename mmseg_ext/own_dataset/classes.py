"""The classes of a project: `data/classes.csv`, which `new_project` writes and the user edits.

    text,class,color
    7,soil,#505050
    9,soil,#505050
    255,,

A text is a value of annotations: a number, a color (#c80a0a) or a name. Texts with an equal class
are one class, and a text without one is ignored. Classes are numbered in the order of the file, so
an edit renames, merges, ignores and orders them. Further runs follow the file; they add new texts.
"""

import csv
import io
import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from mmseg_ext.atomic_write import write_text
from mmseg_ext.errors import join_names
from mmseg_ext.images.files import read_text, same_name
from mmseg_ext.own_dataset.annotations.reader import BACKGROUND, Legend, Reader, plain_name
from mmseg_ext.own_dataset.item import Notes, Rank

IGNORED = 255
CLASSES_FILE = "classes.csv"
_VOID = ("void", "ignore", "ignored", "__ignore__")  # names of what does not count
_TITLES = ["text", "class", "color"]
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")
# Okabe and Ito's colors, which color-blind people can tell apart, after gray for the background.
_COLORS = (
    *("#505050", "#e69f00", "#56b4e9", "#009e73"),
    *("#f0e442", "#0072b2", "#d55e00", "#cc79a7"),
)
_STEPS = 7  # of each channel in the grid of further colors, which has more than 255 colors


class Row(NamedTuple):
    """A line of the file."""

    text: str  # empty for a class that no annotation can have
    name: str  # empty if the text is ignored
    color: str = ""  # #rrggbb; the first one of a class counts


class Classes:
    """The classes of a project.

    Attributes:
        rows: the lines of the file.
        names: the classes in the order of their numbers.
        numbers: the class of each text, or 255.
        palette: RGB of each class.
    """

    def __init__(self, rows: Sequence[Row]):
        self.names = list(dict.fromkeys(row.name for row in rows if row.name))
        self.numbers: dict[str, int] = {}
        own = dict.fromkeys(self.names, "")
        for row in rows:
            if row.text:
                self.numbers[row.text] = self.names.index(row.name) if row.name else IGNORED
            if row.name and not own[row.name]:
                own[row.name] = row.color
        colors = dict(zip(self.names, distinct_colors(list(own.values())), strict=True))
        self.palette = [list(bytes.fromhex(color[1:])) for color in colors.values()]
        self.rows = [row._replace(color=colors.get(row.name, "")) for row in rows]

    def write(self, data: Path) -> None:
        """Write the file in a project's data."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([_TITLES, *self.rows])
        write_text(out.getvalue(), data / CLASSES_FILE)


def distinct_colors(own: Sequence[str]) -> list[str]:
    """Return the color (#rrggbb) of each class: its own one, else a fixed one, else a distinct one.

    Of the colors of a grid it is the one whose smallest distance from all others, and from the
    white of ignored pixels, is the largest as people see it (CIELAB).
    """
    taken = {color.lower() for color in own}
    colors = list(own)
    for i, fixed in enumerate(_COLORS[: len(own)]):
        if not own[i] and fixed not in taken:
            colors[i] = fixed
    used = [[255, 255, 255], *(list(bytes.fromhex(color[1:])) for color in colors if color)]
    grid = np.stack(np.meshgrid(*[np.linspace(0, 255, _STEPS)] * 3), axis=-1).reshape(-1, 3)
    every = np.concatenate([used, grid]).astype(np.float32) / 255
    lab = cv2.cvtColor(every[None], cv2.COLOR_RGB2LAB)[0]
    near, far = np.split(lab, [len(used)])
    distance = np.linalg.norm(far[:, None] - near, axis=2).min(1)
    for i, color in enumerate(colors):
        if not color:
            best = distance.argmax()
            colors[i] = "#{:02x}{:02x}{:02x}".format(*grid[best].round().astype(int))
            distance = np.minimum(distance, np.linalg.norm(far - far[best], axis=1))
    return colors


def read_classes(data: Path) -> Classes | None:
    """Return the classes in a project's data, or None for another folder.

    Raises:
        ValueError: if a line is not a class, or there are not 2 to 255 classes.
    """
    file = data / CLASSES_FILE
    former = data / "classes.json"  # of version 1.0, which had no colors
    if not file.is_file() and former.is_file():
        content = json.loads(former.read_text())
        return Classes(_rows(content["classes"], content["labels"], {}))
    if not file.is_file():
        return None
    rows = []
    content = read_text(file)
    # Spreadsheets write others than the comma. Names can have any, so the titles come first.
    separator = max(",;\t", key=lambda each: (each.join(_TITLES) in content, content.count(each)))
    for number, cells in enumerate(csv.reader(content.splitlines(), delimiter=separator), 1):
        cells = [cell.strip() for cell in cells]
        if not any(cells) or cells == _TITLES:
            continue
        if cells[0].startswith("# ") and not any(map(_COLOR.fullmatch, cells)):  # the user's note
            cells = [", ".join(filter(None, cells))]
        text, name, color, *more = cells + [""] * (3 - len(cells))
        if any(more) or (color and not _COLOR.fullmatch(color)):
            raise ValueError(
                f"{file}: line {number} is not text,class,#rrggbb; correct it, with quotes around "
                "a name that has a comma"
            )
        if text and text in (row.text for row in rows):
            raise ValueError(f"{file}: line {number} has {text} again; keep one line of it")
        rows.append(Row(text, name, color))
    classes = Classes(rows)
    if not 2 <= len(classes.names) <= IGNORED:
        raise ValueError(
            f"{file}: has {len(classes.names)} classes; a project needs 2 to {IGNORED}; name more "
            "texts, or less"
        )
    return classes


def _rows(names: Sequence[str], numbers: Mapping[str, int], colors: Mapping[str, str]) -> list[Row]:
    """Return a row for each text, in the order of the classes; `numbers` has the class of each."""
    rows = []
    for i, name in enumerate(names):
        texts = [text for text, number in numbers.items() if number == i]
        if not texts:  # no annotation shows it yet, but another one can
            text = name if BACKGROUND in numbers else str(i)
            texts = ["" if text in numbers else text]
        rows += [Row(text, name, colors.get(text, "")) for text in texts]
    return rows + [Row(text, "") for text, number in numbers.items() if number == IGNORED]


def choose_classes(
    legend: Legend,
    reader: Reader,
    names: Sequence[str] | None,
    ignored: Sequence[str],
    data: Path,
    notes: Notes,
) -> Classes:
    """Return the classes of a project: of its file, with new texts at the end, or the first ones.

    `names` and `ignored` are the user's.

    Raises:
        ValueError: if the values do not fit the names or the file; see `assign_classes`.
    """
    before = read_classes(data)
    labels, listed = legend.labels, legend.names
    of_name = {name: text for text, name in listed.items()}
    names = list(map(plain_name, names or ()))
    given_names = [*labels.values(), *of_name, *names]
    ignored = [same_name(text, given_names) for text in ignored]
    ignored = [of_name.get(text, text) for text in ignored]
    if before is not None:
        return _follow(before, legend, reader, names, ignored, data / CLASSES_FILE, notes)
    ignored += [text for text in reader.ignored if text in labels.values()]
    given = names
    # Colors have no order of their own: they get the order of a file that names them.
    if listed and not (names and not any(text.startswith("#") for text in labels.values())):
        order = list(listed)
        named = [same_name(name, of_name) for name in names]
        if named and set(named) <= of_name.keys() and len(set(named)) == len(named):
            order = [of_name[name] for name in named]
            chosen = zip(names, order, strict=True)
            given = [name for name, text in chosen if text not in ignored]
        order += [text for text in labels.values() if text not in order]
        if not names:
            void = [text for text in order if listed.get(text, "").lower() in _VOID]
            if len(listed) - len(void) > 1:  # void and one class are two classes
                ignored += void
            ignored += [text for text in order if text not in listed]
            given = [listed[text] for text in order if text not in ignored]
        labels = dict(enumerate(order))
    found, of_text = assign_classes(labels, given, ignored)

    # Whether 255 is a class cannot be seen in masks. A name for a later value is perhaps its name.
    number, file = of_text.get(str(IGNORED), IGNORED), data / CLASSES_FILE
    steps = np.diff(sorted(labels))
    is_far = max(labels) == IGNORED and len(steps) > 1 and steps[-1] > 2 * max(steps[:-1])
    if number != IGNORED and not given and is_far:
        text = f"255 is a class; to ignore it, drop its name in {file} and run again"
        notes.add(Rank.LABELS, text)
    elif number != IGNORED and given and _is_255_ignored(labels):
        text = f"255 is {found[number]}, because --classes has a name for each value; if 255 does"
        todo = f"not count, give {found[number]} to another value in {file}, and none to 255"
        notes.add(Rank.LABELS, f"{text} {todo}, and run again")
    return Classes(_rows(found, of_text, legend.colors))


def _follow(
    before: Classes,
    legend: Legend,
    reader: Reader,
    names: Sequence[str],
    ignored: Sequence[str],
    file: Path,
    notes: Notes,
) -> Classes:
    """Return the classes of a project's file, and a row for each new text at the end."""
    texts = list(legend.labels.values())
    known = before.numbers
    if known.keys().isdisjoint(texts):
        raise ValueError(
            f"this project has the values {join_names(list(known))}, but the annotations have "
            f"{join_names(texts)}; delete its folder, or write to another one"
        )
    are_names = BACKGROUND in texts
    listed = legend.names
    wanted = [name for name in names if name not in ignored and listed.get(name) not in ignored]
    if are_names and names and BACKGROUND not in (*names, *ignored):
        wanted = [BACKGROUND, *wanted]
    flags = []
    if names and wanted != before.names:
        flags.append("--classes")
    if any(known.get(text, IGNORED) != IGNORED or text in before.names for text in ignored):
        flags.append("--ignore")
    if flags:
        text = f"{file} has the classes {join_names(before.names)}; {' and '.join(flags)} would"
        notes.add(Rank.LABELS, f"{text} change them and is not used; edit the file and run again")
    unknown = set(ignored).difference(known, texts, names)
    if unknown:
        raise ValueError(f"--ignore {min(unknown)}: no annotation has this value; edit {file}")
    rows, found = list(before.rows), list(before.names)
    for text in texts:
        if text in known:
            continue
        name = listed.get(text, "")
        if name.lower() in _VOID or text in (*ignored, *reader.ignored):
            name = ""
        elif are_names:
            name = text
        elif not listed and not (text == str(IGNORED) and _is_255_ignored(legend.labels)):
            free = (f"class_{i}" for i in itertools.count(len(found)))
            name = next(name for name in free if name not in found)  # a user can have named one so
        if name and name not in found:
            found.append(name)
        becomes = f"class {found.index(name)}, {name}" if name else "ignored"
        notes.add(Rank.LABELS, f"{text} is new: it is {becomes}; {file} can name it otherwise")
        rows.append(Row(text, name, legend.colors.get(text, "") if name else ""))
    return Classes(rows)


def assign_classes(
    labels: Mapping[int, str], names: Sequence[str] | None = None, ignored: Collection[str] = ()
) -> tuple[list[str], dict[str, int]]:
    """Return the classes, and the class of each label; 255 for ignored labels.

    The value 255 of masks is ignored if the other values are 0, 1, 2, ..., of which one can be
    missing, or numbers of named classes. If all values can have a name each, it is a class, and in
    masks with two values.

    Raises:
        ValueError: if the labels do not fit the names, or there are not 2 to 255 classes.
    """
    texts = list(labels.values())
    if len(labels) == 1:
        raise ValueError(f"all masks have the value {texts[0]}; at least two values are needed")
    ignored = set(ignored)
    named = ignored.difference(texts)  # by a name of `names`
    unknown = named.difference(names or ())
    if unknown:
        raise ValueError(
            f"--ignore {min(unknown)}: no annotation has this value; there are "
            f"{len(texts)} values: {join_names(texts)}"
        )
    left = {number: text for number, text in labels.items() if text not in ignored}
    if BACKGROUND in texts:  # labels are names
        classes = list(names or left.values())
        if BACKGROUND not in (*classes, *ignored):
            classes.insert(0, BACKGROUND)
        found = [same_name(text, classes) for text in left.values()]
        missing = set(found) - set(classes)
        if missing:
            raise ValueError(f"--classes lacks {min(missing)!r}; name it, or add it to --ignore")
        numbers = list(map(classes.index, found))
    else:  # values or colors
        if _is_255_ignored(left, names):
            del left[IGNORED]
        numbers = list(range(len(left)))
        classes = list(names or (f"class_{i}" for i in numbers))
        if names and max(left, default=0) < len(names):  # values are the numbers of the classes
            numbers = list(left)
        elif len(classes) != len(left):
            values = f"{len(left)} values"
            if len(left) < len(labels):
                values += " that are not ignored"
            found = join_names(list(left.values()))
            raise ValueError(
                f"--classes names {len(classes)} classes, but there are {values}: {found}; give "
                "one name per value, or --ignore values"
            )
    # Ignored names get no number.
    kept = [name for name in classes if name not in named]
    number_of = {name: i for i, name in enumerate(kept)}
    of_text = dict.fromkeys(texts, IGNORED)
    for text, i in zip(left.values(), numbers, strict=True):
        of_text[text] = number_of.get(classes[i], IGNORED)
    if not 2 <= len(kept) <= IGNORED:
        todo = "ignore fewer" if len(kept) < 2 else "masks with smooth edges have too many"
        raise ValueError(
            f"{len(kept)} classes, but a project has 2 to {IGNORED}; there are "
            f"{len(texts)} values: {join_names(texts)}; {todo}"
        )
    for name in kept:
        if kept.count(name) > 1 or not name.strip():
            raise ValueError(f"class {name!r}: every class needs a name of its own")
    return kept, of_text


def _is_255_ignored(labels: Mapping[int, str], names: Sequence[str] | None = None) -> bool:
    if IGNORED not in labels or len(labels) < 3:
        return False
    others = labels.keys() - {IGNORED}
    if not names:  # 0, 1, 2, ..., of which one can be missing
        return max(others) <= len(others)
    if len(names) == len(labels):  # they can be the names of all values
        return 0 in others and len(others) <= max(others) < len(names)
    return max(others) < len(names)
