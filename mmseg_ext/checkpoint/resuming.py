"""Which checkpoint of a folder a run goes on from. Nothing outside the folder is looked at."""

import re
from pathlib import Path

from mmseg_ext.checkpoint.files import read_checkpoint
from mmseg_ext.errors import CheckpointError

RUN = "current_run"  # a text file with the identity of the run whose folder this is
_LAST = "last_checkpoint"  # mmengine's name: a text file that names the newest checkpoint
_CHECKPOINT = re.compile(r"(iter|epoch)_\d+\.pth")


def _word(path: Path) -> str | None:
    """The one word in a text file; None without it."""
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if text and text.isprintable() else None


def run_of(path: Path) -> str | None:
    """The identity of the run that wrote a checkpoint; None where it does not say."""
    try:
        return read_checkpoint(path, mmap=True)["meta"].get("run")
    except Exception:  # what cannot be read is for `newest_complete` to name
        return None


def all_checkpoints(folder: str | Path) -> list[Path]:
    """The one that `last_checkpoint` names, where it is there, then the others, newest first."""
    named_so = (p for p in Path(folder).glob("*.pth") if _CHECKPOINT.fullmatch(p.name))
    found = [p for p in named_so if p.is_file()]
    found.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    named = _named_last(folder)
    if named is not None and named.is_file():
        found = [named, *(path for path in found if path != named)]
    return found


def _named_last(folder: str | Path) -> Path | None:
    """The file in `folder` that `last_checkpoint` names, whatever folder stands there."""
    text = _word(Path(folder, _LAST))
    return None if text is None else Path(folder, Path(text).name)


def candidates(folder: str | Path) -> list[Path]:
    """`all_checkpoints` without those that say they are of another run than the folder's.

    They are so where a new run was started in the folder of an older one.
    """
    run = _word(Path(folder, RUN))
    found = all_checkpoints(folder)
    return found if run is None else [path for path in found if run_of(path) in (run, None)]


def newest_complete(folder: str | Path) -> tuple[Path | None, list[str]]:
    """The first of `candidates` that reads whole, and why those before it do not.

    Raises:
        CheckpointError: where there are candidates and none is whole, naming each.
    """
    problems = []
    named = _named_last(folder)
    if named is not None and not named.exists():
        problems.append(f"{folder}/{_LAST} names {str(named)!r}, which is not there")
    for path in candidates(folder):
        try:
            read_checkpoint(path)
        except (CheckpointError, OSError) as error:
            problems.append(str(error))
        else:
            return path, problems
    if problems:
        raise CheckpointError(
            f"--resume: {'; '.join(problems)}; there is no whole checkpoint: name another with "
            "--cfg-options load_from=FILE, or start anew in another work directory"
        )
    return None, problems


def require_resumable(content: dict, name: str) -> None:
    """That a loaded checkpoint is of a training, and not of weights alone.

    Raises:
        CheckpointError: with what to do instead.
    """
    meta, hub = content.get("meta") or {}, content.get("message_hub") or {}
    if not {"epoch", "iter"} <= meta.keys() or "runtime_info" not in hub:
        raise CheckpointError(
            f"{name}: holds weights, and no state of a training to resume; to start from its "
            f"weights, leave out --resume and name it with --cfg-options load_from={name}"
        )
