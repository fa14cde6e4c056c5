"""What the commands that start a Runner share: mmsegmentation's flags, and one message at the end.

A run that cannot start, or cannot go on, ends with one message and exit status 1; a wrong flag with
status 2.
"""

import argparse
import errno
import gc
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager

import torch.distributed

from mmseg_ext.engine.distributed import name_slurm_process
from mmseg_ext.errors import (
    SAFE_UNTIL_NOW,
    CheckpointError,
    LabelError,
    LaunchError,
    MissingDataError,
    RunError,
    UnreadableFileError,
)

# A disk that is full, over its quota, broken or read-only.
_DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.ENOTDIR,
)


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; the launcher's numbers of this process become torch's."""
    args = parser.parse_args(argv)
    if args.launcher == "slurm":  # messages ask for LOCAL_RANK before there is a process group
        name_slurm_process()
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    return args


@contextmanager
def exit_on_run_error():
    """End the process with one message when a run cannot start or go on.

    One process per machine prints a message that is the same in all of them.
    """
    before = logging.raiseExceptions
    logging.raiseExceptions = False  # a log on a full disk: one trace for each line of it
    try:
        yield
    except (LaunchError, CheckpointError) as error:
        first = int(os.environ.get("LOCAL_RANK", 0)) == 0
        sys.exit(f"mmseg_ext: {error}" if first else 1)
    except RunError as error:  # of this process alone
        sys.exit(f"mmseg_ext: {error}")
    except MissingDataError as error:  # its layout takes several lines
        sys.exit(f"mmseg_ext: data: {error}")
    except (LabelError, UnreadableFileError) as error:
        # A loader's process hands on its trace, which ends in "module.LabelError: <message>".
        line = str(error).strip().splitlines()[-1]
        line = line.removeprefix(f"{type(error).__module__}.{type(error).__name__}: ")
        sys.exit(f"mmseg_ext: data: {line}")
    except OSError as error:
        if error.errno not in _DISK:
            raise
        sys.exit(
            f"mmseg_ext: {error.filename or 'a file of the run'}: {error.strerror}; "
            f"{SAFE_UNTIL_NOW}"
        )
    finally:
        logging.raiseExceptions = before
        if torch.distributed.is_initialized():
            _leave_process_group()


def _leave_process_group() -> None:
    """Destroy the group and end gloo's threads while there is an interpreter.

    One of them that releases a tensor after the interpreter's end aborts the process, and a
    finished run would exit with a failure. The wrapped model holds the group in reference cycles,
    hence the collection; and the last reference is Python's own, which lets the threads have the
    interpreter's lock while they are waited for.
    """
    group = torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
    gc.collect()
    del group
