"""Find the checkpoint in a folder from which a run resumes."""

import re
from pathlib import Path

from mmseg_ext.checkpoint.files import read_checkpoint
from mmseg_ext.errors import CheckpointError

RUN = "current_run"  # a text file with the identity of the run that owns the folder
_LAST = "last_checkpoint"  # mmengine's text file with the path of the newest checkpoint
_CHECKPOINT = re.compile(r"(iter|epoch)_\d+\.pth")


def _read_word(path: Path) -> str | None:
    """Return the content of a text file; None if it is missing or is not text."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if text and text.isprintable() else None


def run_of(path: Path) -> str | None:
    """Return the identity of the run that wrote a checkpoint, or None."""
    try:
        return read_checkpoint(path, mmap=True)["meta"].get("run")
    except Exception:  # `newest_complete` reports files that cannot be read
        return None


def _named_last(folder: str | Path) -> Path | None:
    """Return the file in `folder` with the name in `last_checkpoint`.

    The path in it is ignored: in a copied folder it refers to the original.
    """
    text = _read_word(Path(folder, _LAST))
    return None if text is None else Path(folder, Path(text).name)


def all_checkpoints(folder: str | Path) -> list[Path]:
    """Return the checkpoint in `last_checkpoint`, if it exists, then the others, newest first."""
    found = [p for p in Path(folder).glob("*.pth") if _CHECKPOINT.fullmatch(p.name) and p.is_file()]
    found.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    named = _named_last(folder)
    if named is not None and named.is_file():
        found = [named, *(path for path in found if path != named)]
    return found


def candidates(folder: str | Path) -> list[Path]:
    """Return `all_checkpoints` without those of an earlier run in the same folder."""
    run = _read_word(Path(folder, RUN))
    found = all_checkpoints(folder)
    return found if run is None else [path for path in found if run_of(path) in (run, None)]


def newest_complete(folder: str | Path) -> tuple[Path | None, list[str]]:
    """Return the first readable file of `candidates`, and what is wrong with those before it.

    Raises:
        CheckpointError: if there are candidates and all are damaged.
    """
    problems = []
    named = _named_last(folder)
    if named is not None and not named.exists():
        problems.append(f"{folder}/{_LAST} names {str(named)!r}, which does not exist")
    for path in candidates(folder):
        try:
            read_checkpoint(path)
        except (CheckpointError, OSError) as error:
            problems.append(str(error))
        else:
            return path, problems
    if problems:
        raise CheckpointError(
            f"--resume: {'; '.join(problems)}; name an intact checkpoint with --cfg-options "
            "load_from=FILE, or start again in another work directory"
        )
    return None, problems


def require_resumable(content: dict, name: str) -> None:
    """Raise CheckpointError for a checkpoint without the state of a training run."""
    meta, hub = content.get("meta") or {}, content.get("message_hub") or {}
    if not {"epoch", "iter"} <= meta.keys() or "runtime_info" not in hub:
        raise CheckpointError(
            f"{name}: contains weights, but no training state to resume; to start from its "
            f"weights, use --cfg-options load_from={name} without --resume"
        )
