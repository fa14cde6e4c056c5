"""Annotations, their pixels and their meaning, and the base class of all readers.

A reader lists its annotations with the names by which they fit images, and reads one at a time as
an index map: an index in each pixel, and the value of each index. The meaning of a value can depend
on other annotations: palettes can disagree on an index, and labels are in alphabetical order.
Therefore `describe` returns the texts of all values after the last annotation is read. Until then
index maps wait in compressed files, so each annotation is decoded once.
"""

import contextlib
import itertools
import json
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mmseg_ext.datasets.nuclei import draw_labels
from mmseg_ext.errors import LabelError
from mmseg_ext.own_dataset.annotations.formats import format_of
from mmseg_ext.own_dataset.item import Key, keyed_files

BACKGROUND = "background"
NO_OBJECT, OBJECT = "no object", "object"
OBJECT_VALUES = (NO_OBJECT, OBJECT, "border")


class Annotation(NamedTuple):
    """An annotation of an image, as a reader lists it."""

    key: Key  # by what it is compared with images
    paths: tuple[Path, ...]  # its file, or several masks of the image
    image_name: str = ""  # if a file describes several images
    content: Any = None  # what such a file has about the image
    classes: tuple[str, ...] = ()  # the class of each mask, if each is of one class
    is_missing: bool = False  # whether all is background; then the image is the path

    @property
    def path(self) -> Path:
        """The file that messages name."""
        return self.paths[0]


@contextlib.contextmanager
def reading(path: Path, flag: str = "", image_name: str = "") -> Iterator[None]:
    """Raise any error as `LabelError` with the file's path; any bytes can be in the file.

    If `flag` is for another format, the error also has the next step for the file's own.
    """
    try:
        yield
    except Exception as error:
        where = f"{path}: {image_name}" if image_name else str(path)
        reason = str(error).removeprefix(f"{path}: ")
        other = format_of(path, flag)
        todo = f"; it {other}" if other and other not in reason else ""
        if isinstance(error, json.JSONDecodeError):
            reason = f"no JSON: {reason}"
        elif not isinstance(error, (ValueError, OSError)):
            # The name of a Python error, such as KeyError, tells a user nothing.
            is_key = isinstance(error, KeyError) and error.args
            reason = f"{error.args[0]!r} is missing" if is_key else reason or repr(error)
            todo = todo or "; docs/own_dataset.md shows which formats can be read"
        raise LabelError(f"{where}: cannot be read ({reason}){todo}") from error


def require_size(size: tuple[int, ...], sizes: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError if the size of an annotation (height, width) is not in `sizes`."""
    if size in sizes:
        return
    (height, width), (image_height, image_width) = size, sizes[0]
    sizes_differ = f"it is {width}x{height}, but its image is {image_width}x{image_height}"
    raise ValueError(f"{sizes_differ}; give the image that was annotated")


@dataclass
class StoredMap:
    """The index map of an annotation, in a file."""

    annotation: Annotation
    values: Sequence[Any]  # the value of each index
    counts: np.ndarray  # the pixels of each index, (len(values),)
    shape: tuple[int, ...]  # height and width
    file: Path

    def load(self) -> np.ndarray:
        """Return the index of each pixel, (H, W)."""
        with np.load(self.file) as arrays:
            return arrays["indices"]


@dataclass
class IndexMap:
    """An annotation as its reader returns it; a value can be without pixels."""

    values: Sequence[Any]  # the value of each index
    indices: np.ndarray  # (H, W)
    notes: Sequence[str] = ()  # what a user should know; equal ones of all files are counted

    def store(self, annotation: Annotation, file: Path) -> StoredMap:
        """Write the indices of an annotation to a file."""
        indices = self.indices.astype(np.min_scalar_type(len(self.values)), copy=False)
        counts = np.bincount(indices.ravel(), minlength=len(self.values))
        with file.open("wb") as out:
            np.savez_compressed(out, indices=indices)
        return StoredMap(annotation, self.values, counts, indices.shape, file)


def draw_objects(found: IndexMap, ignored: Collection[str] = ()) -> IndexMap:
    """Return no object, object, and border where two are close, as `NucleiDataset` has them.

    In `found` each index is an object, unless its value is the background or ignored.
    """
    kinds = [NO_OBJECT if value == BACKGROUND else value for value in found.values]
    is_object = np.array([kind != NO_OBJECT and kind not in ignored for kind in kinds])
    numbers = np.where(is_object, np.arange(1, len(kinds) + 1), 0).astype(np.uint16)
    indices, values = draw_labels(numbers[found.indices]), [*map(str, OBJECT_VALUES)]
    for index, kind in enumerate(kinds):
        if kind in ignored:
            if kind not in values:
                values.append(kind)
            indices[found.indices == index] = values.index(kind)
    return IndexMap(values, indices, found.notes)


@dataclass
class Legend:
    """The meaning of the values of all annotations of a project."""

    labels: Mapping[int, str]  # the text of each number, in the order of the classes
    texts: Mapping[Any, str]  # the text of each value of the index maps
    colors: dict[str, str] = field(default_factory=dict)  # #rrggbb of texts that have one
    hint: str = ""  # what the values could be instead
    problem: str = ""  # why the values are no classes, unless the user names them
    notes: Sequence[str] = ()  # what a user should know
    # The names of texts in a file, in its order; also to texts that no annotation has.
    names: Mapping[str, str] = field(default_factory=dict)


def legend_of_names(labels: Sequence[str]) -> Legend:
    """Return the legend of values that are their own texts, in the order of the classes."""
    return Legend(dict(enumerate(labels)), dict(zip(labels, labels, strict=True)))


def legend_of_objects(maps: Sequence[StoredMap]) -> Legend:
    """Return the legend of maps that `draw_objects` has drawn."""
    legend = legend_of_names(list(dict.fromkeys([*OBJECT_VALUES, *sorted(values_of(maps))])))
    legend.names = dict(zip(OBJECT_VALUES, (BACKGROUND, *OBJECT_VALUES[1:]), strict=True))
    return legend


@dataclass
class Reader:
    """Annotations of one kind, and how to read them."""

    annotations: Sequence[Annotation]  # all that were found
    is_pattern: bool = False  # whether a pattern chose them
    objects: bool = False  # whether each object is read, instead of its class
    binary: bool = False  # whether masks are black and white, perhaps with smooth edges
    missing_is_background: bool = False  # whether images without an annotation are background

    flag: ClassVar[str] = "--masks"  # of the command
    suffixes: ClassVar[Sequence[str]] = ()  # of the files
    ignored: ClassVar[Sequence[str]] = ()  # texts that are ignored in any case
    names_images: ClassVar[bool] = False  # whether a file has the complete names of its images
    can_have_classes: ClassVar[bool] = False  # whether several masks can be of one class each
    has_background: ClassVar[bool] = True  # whether a pixel without annotation is background

    @classmethod
    def find(cls, source: Any) -> "Reader":
        """Return the files below a folder, or of a pattern; see `keyed_files`."""
        found = keyed_files(Path(source), cls.suffixes)
        annotations = [Annotation(key, (path,)) for path, key in found.items()]
        return cls(annotations, is_pattern=not Path(source).is_dir())

    def read(self, annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
        """Return an annotation; `sizes` are the sizes (height, width) that it may have.

        With `objects` each one has its own index; see `draw_objects`.

        Raises:
            LabelError: if the annotation cannot be read or has another size.
        """
        raise NotImplementedError

    def has_objects(self, annotation: Annotation) -> bool:
        """Return whether an annotation marks anything, or True if only its image shows that."""
        return True

    def describe(self, maps: Sequence[StoredMap]) -> Legend:
        """Return the meaning of the values of all index maps."""
        raise NotImplementedError


def plain_name(name: Any) -> str:
    """Return a name of a class as the project's file keeps it: composed, without outer spaces."""
    return unicodedata.normalize("NFC", str(name)).strip()


def values_of(maps: Sequence[StoredMap]) -> set[Any]:
    """Return the values of all index maps."""
    return set(itertools.chain.from_iterable(part.values for part in maps))
