"""One training at a time in a work directory."""

import fcntl
import os
from pathlib import Path

from mmseg_ext.errors import LaunchError

_LOCK = ".training"


class WorkDirLock:
    """Held by a process from here to `release`, or until it ends in any way.

    It is a POSIX record lock: the system takes it back from an owner that has ended, and children
    do not inherit it.

    Raises:
        LaunchError: where another process holds it.
    """

    def __init__(self, work_dir: str | Path):
        Path(work_dir).mkdir(parents=True, exist_ok=True)
        self._file = Path(work_dir, _LOCK).open("a+")  # noqa: SIM115, closed by `release`
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            owner = self._file.read().strip()
            self._file.close()
            raise LaunchError(
                f"work dir {str(work_dir)!r}: another training is running in it ({owner}); wait "
                "for it to end, or name another with --work-dir"
            ) from error
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()
