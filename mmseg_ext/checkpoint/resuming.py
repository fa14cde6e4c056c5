"""Find the checkpoint in a folder from which a run resumes."""

import re
from pathlib import Path

from mmseg_ext.checkpoint.files import read_checkpoint
from mmseg_ext.errors import CheckpointError

RUN = "current_run"  # a text file with the identity of the run that owns the folder
_LAST = "last_checkpoint"  # mmengine's text file with the path of the newest checkpoint
_CHECKPOINT = re.compile(r"(iter|epoch)_\d+\.pth")


def _read_word(path: Path) -> str:
    """Return the content of a text file; an empty string if it is missing."""
    return path.read_text(errors="replace").strip() if path.is_file() else ""


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
    name = Path(_read_word(Path(folder, _LAST))).name
    return Path(folder, name) if name else None


def all_checkpoints(folder: str | Path) -> list[Path]:
    """Return the checkpoint in `last_checkpoint`, if it exists, then the others, newest first."""
    named = _named_last(folder)
    found = [
        path
        for path in Path(folder).glob("*.pth")
        if path.is_file() and (path == named or _CHECKPOINT.fullmatch(path.name))
    ]
    return sorted(found, key=lambda path: (path != named, -path.stat().st_mtime_ns))


def candidates(folder: str | Path) -> list[Path]:
    """Return `all_checkpoints` without those of an earlier run in the same folder."""
    run, found = _read_word(Path(folder, RUN)), all_checkpoints(folder)
    return [path for path in found if run_of(path) in (run, None)] if run else found


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
