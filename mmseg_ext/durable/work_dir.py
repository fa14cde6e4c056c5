"""The work directory of a run: its lock, its checkpoints, and which of them stay.

A folder can have checkpoints of several runs, and damaged ones. Each checkpoint contains the
identity of its run and the time when it was saved, and two text files in the folder name the newest
run and its last checkpoint. Rank 0 reads them for all processes.
"""

import contextlib
import logging
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mmengine import dist
from mmengine.config import Config
from mmengine.logging import print_log

from mmseg_ext.checkpoint.files import LAST, Origin, origin_of, read_checkpoint
from mmseg_ext.errors import CheckpointError, LaunchError, RunError

try:
    import fcntl
except ImportError:  # Windows, where work directories are not locked
    fcntl = None

RUN = "current_run"  # a text file with the identity of the newest run in the folder
T = TypeVar("T")


@contextlib.contextmanager
def lock_work_dir(folder: str, flag: str = "--work-dir") -> Iterator[None]:
    """Lock a folder of a run until the end of the context or of the process.

    A file system without locks is a warning. `flag` sets another folder.

    Raises:
        LaunchError: if another process holds the lock.
    """
    path = Path(folder, ".training")
    # A link must not lead the text below into another file.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    with os.fdopen(descriptor, "r+") as file:
        try:
            if fcntl is not None:
                # Not `flock`: the workers of a killed process would hold it until they end.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LaunchError(
                f"work dir {folder!r}: another training is running in it "
                f"({file.read().strip() or 'unknown process'}); wait until it ends, or set another "
                f"directory with {flag}"
            ) from error
        except OSError as error:  # of some NFS and Lustre mounts
            print_log(
                f"{path}: the file system has no locks ({error.strerror}); make sure that no other "
                "training uses this work directory",
                logger="current",
                level=logging.WARNING,
            )
        file.truncate()
        print(f"process {os.getpid()} on {platform.node()}", file=file, flush=True)
        yield


def on_rank_zero(action: Callable[[], T]) -> T:
    """Run `action` on rank 0 and return its result, or raise its error, on every rank.

    Other ranks raise a RunError for an error that is neither a LaunchError nor a CheckpointError.
    """
    result = error = None
    if dist.is_main_process():
        try:
            result = action()
        except Exception as raised:  # of any kind, or the other ranks would wait
            error = raised
    error_to_send = error
    if error is not None and not isinstance(error, LaunchError | CheckpointError):
        # An error of another type may not survive pickling.
        error_to_send = RunError(f"rank 0: {type(error).__name__}: {error}")
    sent: list[Any] = [result, error_to_send]
    dist.broadcast_object_list(sent)
    if error is not None:
        raise error
    result, received_error = sent
    if received_error is not None:
        raise received_error
    return result


def checkpoint_folder(cfg: Config) -> Path:
    """Return the folder of a config's checkpoints: the work directory, or one in `out_dir`.

    A relative folder stays relative: machines without a shared folder can differ in the rest.
    """
    out_dir = _checkpoint_settings(cfg).get("out_dir")
    if not out_dir:
        return Path(cfg.work_dir)
    return Path(out_dir, Path(os.path.abspath(cfg.work_dir)).name)


def _checkpoint_settings(cfg: Config) -> dict:
    """Return the settings of the config's checkpoint hook."""
    return (cfg.get("default_hooks") or {}).get("checkpoint") or {}


def _read_word(path: Path) -> str:
    """Return the content of a text file; an empty string if it is missing."""
    return path.read_text(errors="replace").strip() if path.is_file() else ""


def find_checkpoints(cfg: Config) -> tuple[list[Path], list[Path]]:
    """Return the checkpoints of the work directory's run, newest first, and of other runs.

    A run can stop after it has saved a checkpoint and before it writes `last_checkpoint`, so this
    file only adds a checkpoint with another name. The path in it may be of a copied folder. An
    archive of weights comes last: a run does not resume exactly without its optimizer's state.
    """
    own_name = series_pattern(_checkpoint_settings(cfg).get("filename_tmpl"))
    last = Path(_read_word(Path(cfg.work_dir, LAST))).name
    run = _run_of(cfg)
    origins: dict[Path, Origin] = {}
    for path in checkpoint_folder(cfg).glob("*"):
        is_named = path.name == last or own_name.fullmatch(path.name)
        if is_named and path.is_file():
            origins[path] = origin_of(path)

    def rank(path: Path) -> tuple[bool, float]:
        is_of_training = origins[path].has_optimizer or own_name.fullmatch(path.name) is not None
        return is_of_training, origins[path].saved_at

    own, of_others = [], []
    for path in sorted(origins, key=rank, reverse=True):
        if run and origins[path].run not in (run, None):
            of_others.append(path)
        else:
            own.append(path)
    return own, of_others


def _run_of(cfg: Config) -> str:
    """Return the identity of the work directory's run; version 1.0.0 wrote it only to `out_dir`."""
    return _read_word(Path(cfg.work_dir, RUN)) or _read_word(checkpoint_folder(cfg) / RUN)


def series_pattern(template: str | None) -> re.Pattern[str]:
    """Return the pattern of checkpoints with this `filename_tmpl`; group 1 is the number."""
    if template is None:
        return re.compile(r"(?:iter|epoch)_(\d+)\.pth")  # 'iter_500.pth'
    field = r"\{[^}]*\}"  # '{}' and '{:06d}'
    before, *others = re.split(field, template)  # 'iter_' and ['.pth'], of 'iter_{}.pth'
    after = others[0] if others else ""
    return re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}")


def series_of(name: str, template: str) -> tuple[str, int] | None:
    """Return what is before the template in the name of a checkpoint, and its step.

    'best_mIoU_iter_500.pth' is ('best_mIoU_', 500) for 'iter_{}.pth', and 'iter_500.pth' is
    ('', 500): a regular checkpoint.
    """
    found = re.fullmatch(f"(.*?){series_pattern(template).pattern}", name)
    return (found[1], int(found[2])) if found else None


def replaced_checkpoints(
    names: Iterable[str], template: str, step: int, kept: Sequence[int], best: Iterable[str]
) -> dict[str, str]:
    """Return the checkpoints to remove once that of `step` is complete, each with its successor.

    Args:
        names: of the files in the folder.
        template: of the names of regular checkpoints, such as 'iter_{}.pth'.
        kept: the steps whose regular checkpoints stay, sorted; none keeps all of them.
        best: the names of the best checkpoints, one for each score.
    """
    existing = set(names)
    needed = [*best, *(template.format(number) for number in kept)]
    newest = {}  # the last needed one of each series; later steps are later in `kept`
    for name in needed:
        found = series_of(name, template)
        if found is not None:
            newest[found[0]] = name
    replaced = {}
    for name in sorted(existing.difference(needed)):
        found = series_of(name, template)
        if found is None:  # of somebody else
            continue
        series, saved_step = found
        # A score that this run does not keep has no newer one, and stays. After a resume from an
        # earlier checkpoint the later ones stay, too: they are replaced when they are written.
        newer = newest.get(series)
        if newer in existing and saved_step < step:
            replaced[name] = newer
    return replaced


def missing_checkpoint(cfg: Config) -> str:
    """Return a line if the folder lacks the checkpoint of `last_checkpoint`, otherwise ''.

    For example a relative `out_dir` is another folder if the run resumes from another directory.
    Work directories of one name share the folder in `out_dir`, so their runs overwrite files.
    """
    folder = checkpoint_folder(cfg)
    last = _read_word(Path(cfg.work_dir, LAST))
    if not last:
        return ""
    path = folder / Path(last).name
    line = f"{cfg.work_dir}/{LAST} names {last}, which"
    if not path.exists():
        return f"{line} is not in {str(folder)!r}"
    is_of_another_run = _run_of(cfg) != _read_word(folder / RUN)
    if is_of_another_run and path not in find_checkpoints(cfg)[0]:
        return f"{line} the run of another work directory has overwritten; set another out_dir"
    return ""


def newest_complete(cfg: Config) -> tuple[Path | None, list[str]]:
    """Return the newest readable checkpoint of the folder's run, and the problems of newer ones.

    Raises:
        CheckpointError: if there are checkpoints and all are damaged or elsewhere.
    """
    missing = missing_checkpoint(cfg)
    problems = [missing] if missing else []
    for path in find_checkpoints(cfg)[0]:
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
    meta = content.get("meta") or {}
    hub = content.get("message_hub") or {}
    if not {"epoch", "iter"} <= meta.keys() or "runtime_info" not in hub:
        raise CheckpointError(
            f"{name}: contains weights, but no training state to resume; to start from its "
            f"weights, use --cfg-options load_from={name} without --resume"
        )
