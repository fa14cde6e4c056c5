"""A photo of a project, from its path to its label map, and what a user should know about it.

All steps of `make_project` take the same list of items and fill in what they find out. An item with
a `problem` is left out: no later step looks at it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from mmseg_ext.own_dataset.matching import Key


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


class Notes:
    """What a user should know, the gravest first; equal texts are one note with all places."""

    def __init__(self):
        self._of_text: dict[str, Note] = {}

    def add(self, rank: Rank, text: str, where: Any = "") -> None:
        """Add a text, or only the place if the text is already there; '' is none."""
        if not text:
            return
        note = self._of_text.setdefault(text, Note(rank, text))
        if where:
            note.places.append(str(where))

    def __iter__(self) -> Iterator[Note]:
        return iter(sorted(self._of_text.values(), key=lambda note: note.rank))

    def __len__(self) -> int:
        return len(self._of_text)


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
    # Set by `read_item`:
    size: tuple[int, int] = (0, 0)  # upright: height and width
    orientation: int = 1  # of the file, EXIF's, 1 to 8
    small: Any = None  # a small version of the image, (2, 16, 16)
    small_label: Any = None  # the share of objects, (16, 16)
    colors: int = 0  # different values in its first band
    map: Any = None  # the annotation's pixels, a `StoredMap`
    is_turned: bool = False  # whether the annotation is turned as the photo's file
    # Set by `set_classes`:
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
