"""The lock of a work directory: one training at a time."""

import contextlib
import logging
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from mmengine.logging import print_log

from mmseg_ext.errors import LaunchError

try:
    import fcntl
except ImportError:  # Windows, where work directories are not locked
    fcntl = None


@contextlib.contextmanager
def lock_work_dir(work_dir: str) -> Iterator[None]:
    """Lock the work directory until the end of the context or of the process.

    A file system without locks is a warning.

    Raises:
        LaunchError: if another process holds the lock.
    """
    path = Path(work_dir, ".training")
    # A link must not lead the text below into another file.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    with os.fdopen(descriptor, "r+") as file:
        try:
            if fcntl is not None:
                # Not `flock`: the workers of a killed process would hold it until they end.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LaunchError(
                f"work dir {str(work_dir)!r}: another training is running in it "
                f"({file.read().strip() or 'unknown process'}); wait until it ends, or set another "
                "directory with --work-dir"
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
