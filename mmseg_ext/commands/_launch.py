"""End runs that cannot start or continue with one message and status 1."""

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
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES}
_DISK |= {errno.ENOTDIR}


@contextmanager
def exit_on_run_error():
    """End the process with one message if a run cannot start or continue.

    One process per machine prints a message that is the same in all processes.
    """
    before = logging.raiseExceptions
    logging.raiseExceptions = False  # else each line of a log on a full disk prints a traceback
    succeeded = False
    try:
        yield
        succeeded = True
    except SystemExit as end:  # a stop signal
        succeeded = end.code == 0
        raise
    except (LaunchError, CheckpointError) as error:  # the same in all processes
        first = int(os.environ.get("LOCAL_RANK", 0)) == 0
        sys.exit(f"mmseg_ext: {error}" if first else 1)
    except RunError as error:
        sys.exit(f"mmseg_ext: {error}")
    except MissingDataError as error:  # with the expected layout on several lines
        sys.exit(f"mmseg_ext: data: {error}")
    except (LabelError, UnreadableFileError) as error:
        # A DataLoader's worker sends a traceback whose last line is "module.LabelError: <message>".
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
        # With nccl, the only rank that failed would wait here for the others, and its message would
        # never be printed.
        group = torch.distributed.is_initialized()
        if group and (succeeded or torch.distributed.get_backend() == "gloo"):
            _leave_process_group()


def _leave_process_group() -> None:
    """Destroy the process group and stop gloo's threads while the interpreter is running.

    A thread that releases a tensor after the interpreter has ended aborts the process, and a
    finished run would exit with a failure.
    """
    group = torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
    gc.collect()  # the wrapped model refers to the group in cycles
    del group  # last, from Python: its threads need the interpreter's lock to stop
