"""A photo of a project, from its path to its label map, and notes for the user.

All steps of `make_project` take the same list of items and fill in their findings. An item with
a `problem` is left out: no later step looks at it. Files are compared by their keys.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from mmseg_ext.images.files import files_below
from mmseg_ext.images.values import IMAGE_SUFFIXES
from mmseg_ext.own_dataset.annotations.formats import require_no_other

MASK_SUFFIXES = (*IMAGE_SUFFIXES, ".gif")
_TEXT_SUFFIXES = (".json", ".geojson", ".txt")
MASK_WORDS = "masks?|labels?|labelids|l|seg(?:mentations?(?:class|object)?)?|gt|groundtruth"
MASK_WORDS += "|ann(?:ot(?:ations?)?)?"
_USUAL = f"(?:images?|imgs?|{MASK_WORDS})"
_SPLIT = r"(train|val|test)(?:ing|id|idation)?(?:set)?(?:20\d\d)?"
SPLIT_WORD = re.compile(_SPLIT, re.I)  # validation, trainset, val2017
_FOLDER = re.compile(f"(?:{_USUAL}[_-])?(?:{_SPLIT})?[_-]?{_USUAL}?", re.I)  # labels_train2017
_WILD = re.compile(r"((?:\*|\?|\[!?[^]]+\])+)")  # glob's *, ? and [...]
NAME_PART = re.compile(r"[^\W_]+")  # red and leaf2 in red_leaf2


class Rank(IntEnum):
    """How grave a note is; the gravest is the smallest."""

    SCORE = 0  # the score would be wrong
    LEFT_OUT = 1  # a file is not used
    LABELS = 2  # the label maps are perhaps not what the user means
    TRAINING = 3  # the training would miss something
    HINT = 4


@dataclass
class Note:
    """A text, and the files that it is about."""

    rank: Rank
    text: str
    places: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.places:
            return self.text
        if len(self.places) == 1:
            return f"{self.places[0]}: {self.text}"
        return f"{self.text} ({len(self.places)} in all, the first in {self.places[0]})"


@dataclass
class Notes:
    """Texts for the user, the gravest first; equal texts are one note with all places."""

    _of_text: dict[str, Note] = field(default_factory=dict)

    def add(self, rank: Rank, text: str, *places: Any) -> None:
        """Add a text, if it is not empty, or only the places if the text is already there."""
        if text:
            self._of_text.setdefault(text, Note(rank, text)).places.extend(map(str, places))

    def __iter__(self) -> Iterator[Note]:
        return iter(sorted(self._of_text.values(), key=lambda note: note.rank))

    def __len__(self) -> int:
        return len(self._of_text)


class Key(NamedTuple):
    """The parts of a file's path by which it is compared with other files."""

    split: str | None  # that a folder names
    name: str  # folders and name, without suffix and without usual folders

    @property
    def path(self) -> PurePath:
        """The name below a folder for the split, if there is one."""
        return PurePath(self.split or "", self.name)


def key_of(path: Path) -> Key:
    """Return the key of a file, whose path is relative to the folder of all images or masks."""
    split, folders = None, []
    for part in path.parts[:-1]:
        usual = _FOLDER.fullmatch(part)
        if usual is None:
            folders.append(part)
        elif usual[1] and split is None:
            split = usual[1].lower()
    while path.suffix.lower() in (*MASK_SUFFIXES, *_TEXT_SUFFIXES):  # twice in a.jpg.json
        path = path.with_suffix("")
    return Key(split, "/".join([*folders, path.name]))


def keyed_files(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> dict[Path, Key]:
    """Return the files below `folder` with these suffixes, and their keys.

    `folder` may end in a pattern, as in `masks/*_label.png` or `data/[ab]*/*_label.png`. Then files
    in deeper folders count, too, and the part that fits the first * of the last name, with ? and
    [...] next to it, is the name. If the pattern fits only folders, as in `data/*/masks`, these are
    the files in them.

    Raises:
        ValueError: if there is no such folder, or it has files of another format instead.
    """
    parts = folder.parts

    def is_pattern(i: int) -> bool:  # a folder can be called data [1]
        return bool(re.search(r"[*?[]", parts[i])) and not Path(*parts[: i + 1]).exists()

    fixed = next(filter(is_pattern, range(len(parts))), len(parts))
    folder, pattern = Path(*parts[:fixed]), parts[fixed:] or ("*",)
    if folder.is_file():
        todo = "give a folder, into which you save each page of a stack as a file"
        raise ValueError(f"{folder}: is a file; {todo}")
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    # What is compared is the first wildcard, else the name; `translate` gives (?s:TEXT)\Z.
    parts = [fnmatch.translate(part)[4:-3] for part in _WILD.split(pattern[-1])]
    compared = min(1, len(parts) - 1)
    if len(parts) > 3:  # as little as possible, because others follow
        parts[1] = parts[1].replace(".*", ".*?")
    parts[compared] = f"({parts[compared]})"
    name_part = re.compile("".join(parts))
    paths = [path for path in files_below(folder) if path.suffix.lower() in suffixes]
    keys = {}
    for path in paths:
        relative = path.relative_to(folder)
        if _fits(relative.parts, pattern):
            found = name_part.fullmatch(path.name)
            keys[path] = key_of(relative.with_name(found[1] if found and found[1] else path.name))
    for path in paths if not keys else ():  # the pattern can be of folders
        relative = path.relative_to(folder)
        if any(_fits(parent.parts, pattern) for parent in relative.parents):
            keys[path] = key_of(relative)
    if not keys and pattern == ("*",):
        require_no_other(folder, suffixes)
    return keys


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path ends as a pattern, in which ** stands for any number of folders."""
    if not pattern:
        return True
    *before, last = pattern
    if last == "**":
        return any(_fits(parts[:count], before) for count in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatch(parts[-1], last) and _fits(parts[:-1], before)


def split_in(name: str) -> str | None:
    """Return the split that is a word of a name, or None."""
    for word in NAME_PART.findall(name):
        if found := SPLIT_WORD.fullmatch(word):
            return found[1].lower()
    return None


@dataclass
class Item:
    """A photo of a project; each step sets some fields."""

    image: Path
    key: Key  # by which annotations are compared with it
    # Set by `pair`:
    annotation: Any = None  # its `Annotation`
    split: str | None = None  # that a folder, a file of annotations or a list names, or is chosen
    problem: str = ""  # why it is left out, "PATH: REASON"; no later step looks at it
    # Set by `apply_lists`:
    list_file: Path | None = None  # the list that names it
    # Set by `_read_item` of project.py:
    size: tuple[int, int] = (0, 0)  # upright: height and width
    orientation: int = 1  # of the file, EXIF's, 1 to 8
    small: Any = None  # a small version of the image, (2, 16, 16)
    small_label: Any = None  # the share of objects, (16, 16)
    colors: int = 0  # different values in its first band
    map: Any = None  # the annotation's pixels, a `StoredMap`
    is_turned: bool = False  # whether the annotation is turned as the photo's file
    # Set by `_find_classes`:
    texts: frozenset[str] = frozenset()  # of its values
    classes: Any = None  # of each index of the map, (N,) uint8
    counts: Any = None  # pixels of each class, at least as many as classes, and of ignored values
    # What a dataset lists: `img_path`, `seg_map_path` and more, for its loaders.
    sample: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its files in the project, without suffixes; can have folders."""
        return self.key.name


def usable(items: Sequence[Item]) -> list[Item]:
    """Return the items without a problem."""
    return [item for item in items if not item.problem]


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` of the items, in equal steps from the first one to the last one."""
    numbers = np.linspace(0, len(items) - 1, min(most, len(items))).astype(int)
    return [items[i] for i in numbers]
