"""Write files completely or not at all: to a temporary name, synced to the disk, then renamed.

Renaming is one operation of the file system, so a reader finds the old file or the new one. Without
the sync, a machine that stops could keep the new name and lose the content.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.errors import NotWritten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PART = ".part"
_LONGEST_START = 50  # characters, which are at most 200 of the 255 bytes of a name


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a new, empty file in the folder of `path`, and rename it to `path` after the block.

    A missing folder is created. If the block raises or the process is killed, `path` is unchanged.
    After a kill the temporary file stays; `remove_parts` removes it.

    Raises:
        NotWritten: for a full disk, a read-only folder, the path of a folder, ...
    """
    path = Path(path)
    # In a folder of somebody else, a name that can be guessed could be a link to another file.
    start = path.name[:_LONGEST_START]  # a name that is as long as names can be has no more room
    part = path.parent / f".{start}.{secrets.token_hex(8)}{_PART}{path.suffix}"
    try:
        if path.is_dir():  # also '.' and '/', which have no name; known before the file is made
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
        _sync(part)
        os.replace(part, path)
        if os.name != "nt":  # Windows cannot open a folder
            _sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise NotWritten(error.errno, error.strerror, str(path)) from error
        raise


def _sync(path: Path) -> None:
    # Windows syncs only files that are open for writing; a folder can only be read.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(text: str, path: str | Path) -> None:
    """Write a small text file atomically; a table gets the mark by which Excel reads umlauts.

    Names of files that are not UTF-8 are written with their bytes.
    """
    needs_mark = Path(path).suffix == ".csv" and not text.isascii()
    with atomic_write(path) as part:
        encoding = "utf-8-sig" if needs_mark else "utf-8"
        part.write_text(text, encoding=encoding, errors="surrogateescape")


def save_figure(figure: "Figure", path: str | Path, dpi: int) -> None:
    """Write a matplotlib figure atomically."""
    with atomic_write(path) as part:
        figure.savefig(part, dpi=dpi)


def remove_parts(folder: str | Path) -> None:
    """Remove the temporary files in `folder` that killed writers left."""
    random_digits = "[0-9a-f]" * 16
    # '.iter_500.pth.0123456789abcdef.part.pth'
    for part in Path(folder).glob(f".*.{random_digits}{_PART}*"):
        part.unlink(missing_ok=True)
