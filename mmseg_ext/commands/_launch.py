"""Runs that cannot start or continue end with one message and exit status 1."""

import errno
import gc
import logging
import os
import sys
from contextlib import contextmanager

import torch.distributed

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
