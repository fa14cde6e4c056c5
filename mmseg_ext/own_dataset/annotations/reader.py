"""The base class of all readers of annotations.

A reader lists its annotations with the names by which they fit images, and reads one at a time.
The meaning of a value can depend on other annotations: palettes can disagree on an index, and the
labels are in alphabetical order. Therefore `describe` returns the texts of all values after the
last one is read. The classes of a project are chosen from these texts.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mmseg_ext.own_dataset.annotations.annotation import Annotation
from mmseg_ext.own_dataset.annotations.index_map import IndexMap, StoredMap
from mmseg_ext.own_dataset.matching import keyed_files


@dataclass
class Legend:
    """The meaning of the values of all annotations of a project."""

    labels: Mapping[int, str]  # the text of each number, in the order of the classes
    texts: Mapping[Any, str]  # the text of each value of the index maps
    colors: dict[str, list[int]] = field(default_factory=dict)  # RGB of texts that have one
    hint: str = ""  # what the values could be instead
    problem: str = ""  # why the values are no classes, unless the user names them
    notes: Sequence[str] = ()  # what a user should know
    # The names that a file gives to texts, in its order; also to texts that no annotation has.
    names: Mapping[str, str] = field(default_factory=dict)


def legend_of_names(labels: Sequence[str]) -> Legend:
    """Return the legend of values that are their own texts, in the order of the classes."""
    return Legend(dict(enumerate(labels)), dict(zip(labels, labels, strict=True)))


@dataclass
class Reader:
    """Annotations of one kind, and how to read them."""

    annotations: Sequence[Annotation]  # all that were found
    is_pattern: bool = False  # whether a pattern chose them
    missing_is_background: bool = False  # whether images without an annotation are background

    flag: ClassVar[str] = "--masks"  # of the command
    suffixes: ClassVar[Sequence[str]] = ()  # of the files
    class_names: ClassVar[Sequence[str] | None] = None  # if the user gives none
    ignored: ClassVar[Sequence[str]] = ()  # texts that are ignored in any case
    names_images: ClassVar[bool] = False  # whether a file has the complete names of its images
    other_folder: ClassVar[str] = ""  # of VOC's layout, with annotations of another kind
    can_have_classes: ClassVar[bool] = False  # whether several masks can be of one class each
    has_background: ClassVar[bool] = True  # whether a pixel without annotation is background

    @classmethod
    def find(cls, source: Any) -> "Reader":
        """Return the files below a folder, or of a pattern; see `keyed_files`."""
        found = keyed_files(source, cls.suffixes)
        annotations = [Annotation(key, (path,)) for path, key in found.items()]
        return cls(annotations, is_pattern="*" in str(source))

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        """Return an annotation; `sizes` are the sizes (height, width) that it may have.

        Raises:
            LabelError: if the annotation cannot be read or has another size.
        """
        raise NotImplementedError

    def has_objects(self, annotation: Annotation) -> bool:
        """Return whether an annotation marks anything, as far as it is known without its image."""
        return True

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        """Return the meaning of the values of all index maps."""
        raise NotImplementedError


def notes_of(maps: Sequence[StoredMap]) -> list[str]:
    """Return a line for each different note of the index maps, with its number."""
    noted: dict[str, list[Annotation]] = defaultdict(list)
    for part in maps:
        for note in part.notes:
            noted[note].append(part.annotation)
    lines = []
    for note, annotations in noted.items():
        where = f"{annotations[0].path} {annotations[0].image_name}".rstrip()
        lines.append(f"{note} ({len(annotations)} in all, the first in {where})")
    return lines


def values_of(maps: Sequence[StoredMap]) -> set[Any]:
    """Return the values of all index maps."""
    return set(itertools.chain.from_iterable(part.values for part in maps))
