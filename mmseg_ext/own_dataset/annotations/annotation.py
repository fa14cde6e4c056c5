"""An annotation: where it is, and the errors that its files can have."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmseg_ext.errors import LabelError
from mmseg_ext.own_dataset.annotations.formats import format_of
from mmseg_ext.own_dataset.matching import Key

BACKGROUND = "background"


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

    If the file is of another format than that of `flag`, the error also says what to do with it.
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
    """Raise ValueError if the size of an annotation (height, width) is not one of `sizes`."""
    if size in sizes:
        return
    (height, width), (image_height, image_width) = size, sizes[0]
    sizes_differ = f"it is {width}x{height}, but its image is {image_width}x{image_height}"
    raise ValueError(f"{sizes_differ}; give the image that was annotated")
