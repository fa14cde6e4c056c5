"""Files that are written whole or not at all: under another name, synced to the disk, renamed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.errors import NotWritten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PART = ".part"


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Give a name beside `path` to write to, and rename it to `path` at the end of the block.

    A missing folder is made. If the block raises or the process is killed, `path` stays as it was;
    the next writer of `path` overwrites what is left. A file has one writer at a time.

    Raises:
        NotWritten: for a full disk, a folder that cannot be written, ...
    """
    path = Path(path)
    part = path.with_name(f".{path.name}{_PART}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        _sync(part)
        os.replace(part, path)
        if os.name != "nt":  # Windows has no handle of a folder
            _sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise NotWritten(error.errno, error.strerror, str(path)) from error
        raise


def _sync(path: Path) -> None:
    # Windows syncs only what may be written; a folder may only be read.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(text: str, path: str | Path) -> None:
    """A small text file, whole."""
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")


def save_figure(figure: "Figure", path: str | Path, dpi: int) -> None:
    """A picture of matplotlib's, whole."""
    with atomic_write(path) as part:
        figure.savefig(part, dpi=dpi)


def remove_parts(folder: str | Path) -> None:
    """Remove what writers that were killed left in `folder`."""
    for part in Path(folder).glob(f".*{_PART}*"):
        part.unlink(missing_ok=True)
