"""Runs in forked processes that stop at one of their file operations, and what they leave."""

import builtins
import errno
import io
import os
import pickle
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.runner import Runner

from tests.durable.curve_model import score
from tests.engine.runs import log_text, train
from tests.engine.states import logged

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink")
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "interrupt": signal.SIGINT}


STOPPED = 77  # the status after `Stop`


class Stop(BaseException):
    """The end of a run; nothing but a test handles it."""


class Operations:
    """Records the file operations of this process below `folder`, and stops at number `at`.

    Of the writes to a file after it was opened only the first one counts; an exception and SIGKILL
    come after its first half. Log files do not count. `how` is 'raise', or a name in `SIGNALS`, or
    'full': then the disk is full from this operation on, and files can only be removed.
    """

    def __init__(self, folder: Path, at: int | None = None, how: str = "raise"):
        self.folder, self.at, self.how = os.path.abspath(folder), at, how
        self.done: list[tuple[str, str]] = []
        self._open = builtins.open
        builtins.open = io.open = self._opened
        sys.addaudithook(self._audit)

    def _reached(self, event: str, path: object, before_stop: Callable = lambda: None) -> None:
        path = os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | Path) else ""
        if not path.startswith(self.folder) or path.endswith(".log"):
            return
        self.done.append((event, path))
        if self.how == "full":
            if len(self.done) > self.at and event not in ("os.remove", "os.rmdir", "os.rename"):
                before_stop()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        elif len(self.done) - 1 == self.at:
            if self.how in ("raise", "kill"):
                before_stop()
            if self.how == "raise":
                raise Stop
            os.kill(os.getpid(), SIGNALS[self.how])

    def _audit(self, event: str, arguments: tuple) -> None:
        if event in _CHANGES:
            there = event == "os.mkdir" and os.path.isdir(arguments[0])
            relative = event in ("os.remove", "os.rmdir") and arguments[1] != -1
            if not there and not relative:  # to an open folder, as of a temporary one
                self._reached(event, arguments[0])
        elif event == "open" and arguments[2] & (os.O_CREAT | os.O_TRUNC):
            self._reached(event, arguments[0])

    def _opened(self, file, mode="r", *args, **settings):
        stream = self._open(file, mode, *args, **settings)
        if set(mode) & set("wax+"):
            write = stream.write

            def counted(data):
                stream.write = write
                half = data[: len(data) // 2]
                self._reached("write", file, lambda: (write(half), stream.flush()))
                return write(data)

            stream.write = counted
        return stream


_set_up = Runner.setup_env


def _set_up_numbered(self, *args) -> None:
    """Number the starts of a folder, because several happen within a second."""
    _set_up(self, *args)
    self._timestamp += f"_{len(list(Path(self.work_dir).glob('2*_*'))):05d}"


def forked(
    action: Callable[[], object], root: Path, at: int | None = None, how: str = "raise"
) -> tuple[int, list, object]:
    """Call `action` in a forked process that stops at an operation below `root`.

    Return its status (as `Popen`'s), its file operations, and what `action` returned or its error.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        status, result, done = 0, None, []
        try:
            done = Operations(root, at, how).done
            result = action()
        except Stop:
            status = STOPPED
        except SystemExit as end:
            status = int(bool(end.code))  # 0 after a stop signal
        except BaseException:
            status, result = 1, traceback.format_exc()
        with open(sender, "wb") as pipe:
            pipe.write(pickle.dumps((done, result)))
        os._exit(status)
    os.close(sender)
    with open(receiver, "rb") as pipe:
        data = pipe.read()
    _, code = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(code), *(pickle.loads(data) if data else ([], None))


def start(
    cwd: Path, words: list, root: Path, at: int | None = None, how: str = "raise"
) -> tuple[int, object]:
    """Train in a forked process; return its status (as `Popen`'s), and its file operations."""

    def run() -> None:
        Runner.setup_env = _set_up_numbered
        os.chdir(cwd)
        train([str(word) for word in words])

    status, done, error = forked(run, root, at, how)
    return status, error or (None if status else done)


# Differ between runs; an earlier best checkpoint can be of a shorter one.
_OWN = {"time", "saved_at", "run", "cfg", "experiment_name", "seed", "eta"}
_OWN |= {"max_iters", "max_epochs"}


def _plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        earned = [key for key in value if key not in _OWN and not str(key).endswith("time")]
        return {str(key): _plain(value[key]) for key in earned}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def state(work: Path, saved: Path) -> dict:
    """Return what a finished run has earned: its logged values, and the checkpoints in `saved`."""
    losses = {str(step): row for step, row in logged(work).items()}
    scores = {str(step): row["curve"] for step, row in logged(work, "curve").items()}
    found: dict = {"losses": losses, "scores": scores}
    for name in checkpoints(saved) - {FOREIGN}:
        content = torch.load(saved / name, weights_only=False)  # in a fourth of the time
        found[name] = _plain(content)
        if name.startswith("best_curve"):
            info = content["message_hub"]["runtime_info"]
            own = score(content["state_dict"]["weight"])
            several = "_curve" * ("best_ckpt_curve" in info)
            named = info[f"best_ckpt{several}"], info[f"best_score{several}"]
            found[f"best of {name}"] = named == (name, own)
    return found


def differences(one: object, two: object, where: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        keys = one.keys() | two.keys()
        found = [
            differences(one.get(k), two.get(k), f"{where}.{k}") for k in sorted(map(str, keys))
        ]
        return [line for lines in found for line in lines]
    return [] if one == two else [f"{where}: {str(one)[:80]} instead of {str(two)[:80]}"]


FOREIGN = "best_curve_iter_99.pth"  # of another run in the same folder


def checkpoints(work: Path) -> set[str]:
    return {path.name for path in work.glob("[a-z]*.pth")}


def named_as_removed(work: Path) -> set[str]:
    """Return the files that the logs of a work directory say are removed."""
    return set(re.findall(r"removing \S*/(\S+\.pth):", log_text(work)))


def frozen(root: Path, *places: Path) -> dict:
    """Return the contents and times of the files in these places, by their path below `root`."""
    files = [f for place in places for f in ([place] if place.is_file() else place.rglob("*"))]
    files = [file for file in files if file.is_file()]
    return {str(f.relative_to(root)): (f.read_bytes(), f.stat().st_mtime_ns) for f in files}
