"""Checkpoints on disk: written whole or not at all, and the newest whole one found again."""

import contextlib
import os
import re
from pathlib import Path

import torch

from mmseg_ext.checkpoint.checksum import CHECKSUM, content_digest
from mmseg_ext.checkpoint.errors import CheckpointError, CheckpointNotWritten
from mmseg_ext.checkpoint.safe_reading import read_checkpoint

LAST = "last_checkpoint"  # mmengine's name: a text file with the path of the newest checkpoint
_PART = ".part"


class _RecordingFile:
    """A file that remembers the error of a failed write, which torch reports without its cause."""

    def __init__(self, file):
        self.file = file
        self.error: OSError | None = None

    def write(self, data) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _replace(path: Path, write) -> None:
    """Write beside `path` by `write(file)`, sync, rename; the folder is synced too."""
    part = path.with_name(f".{path.name}.{os.getpid()}{_PART}")
    recording = None
    try:
        with part.open("wb") as file:
            recording = _RecordingFile(file)
            write(recording)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:
        _discard(part)
        cause = (recording and recording.error) or error
        reason = getattr(cause, "strerror", None) or " ".join(str(cause).split())
        raise CheckpointNotWritten(
            f"{path} cannot be written: {reason}; the checkpoints written before are untouched, "
            "--resume goes on from the last of them"
        ) from error
    except BaseException:
        _discard(part)
        raise


def _discard(part: Path) -> None:
    with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)


def write_checkpoint(content: dict, path: str | Path) -> None:
    """Write tensors and plain containers with their checksum; an older `path` stays until then.

    The content goes to a file beside `path`, which is synced to the disk and then renamed.

    Raises:
        CheckpointNotWritten: for a full disk, a folder that cannot be written, ...
    """
    content = {**content, CHECKSUM: content_digest(content)}
    _replace(Path(path), lambda file: torch.save(content, file))


def write_text(text: str, path: str | Path) -> None:
    """A small text file, as durably as a checkpoint."""
    _replace(Path(path), lambda file: file.write(text.encode()))


def remove_parts(folder: str | Path) -> None:
    """Remove what writes that were cut short left behind."""
    for part in Path(folder).glob(f".*{_PART}"):
        part.unlink(missing_ok=True)


def named_last(work_dir: str | Path) -> Path | None:
    """The file that `last_checkpoint` names, where it is now if the work directory has moved."""
    record = Path(work_dir, LAST)
    if not record.is_file() or not (text := record.read_text().strip()):
        return None
    named = Path(text)
    moved = Path(work_dir, named.name)
    return moved if moved.is_file() and not named.is_file() else named


def candidates(work_dir: str | Path) -> list[Path]:
    """Checkpoints to resume from: the one `last_checkpoint` names, then others, newest first."""
    named = named_last(work_dir)
    folder = Path(work_dir) if named is None else named.parent
    others = [p for p in folder.glob("*.pth") if re.fullmatch(r"(iter|epoch)_\d+", p.stem)]
    others.sort(key=lambda p: p.stat().st_mtime_ns, reverse=True)
    first = [] if named is None else [named]
    return first + [p for p in others if named is None or p.resolve() != named.resolve()]


def newest_whole(work_dir: str | Path) -> tuple[Path | None, list[str]]:
    """The first of `candidates` that reads whole, and why those before it do not.

    Raises:
        CheckpointError: where there are candidates and none is whole, naming each.
    """
    problems = []
    for path in candidates(work_dir):
        try:
            read_checkpoint(path)
        except FileNotFoundError:
            problems.append(f"{work_dir}/{LAST} names {str(path)!r}, which is not there")
        except CheckpointError as error:
            problems.append(str(error))
        else:
            return path, problems
    if problems:
        raise CheckpointError(
            f"--resume: {'; '.join(problems)}; there is no whole checkpoint: name another with "
            "--cfg-options load_from=FILE, or start anew in another work directory"
        )
    return None, problems
