"""The commands, one module each: `parser()` returns its flags, `main(argv)` the exit status.

`mmseg-ext NAME` and the file of that name under `tools/` start the same function.
"""

import errno
import gc
import importlib
import logging
import os
import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from mmseg_ext.errors import (
    SAFE_UNTIL_NOW,
    CheckpointError,
    LabelError,
    LaunchError,
    MissingDataError,
    RunError,
    StackError,
    UnreadableFileError,
)

if TYPE_CHECKING:
    import torch

COMMANDS = {
    "attention_maps": "Draw what a model's attention layers look at in images, as PNG panels.",
    "check_dataset": "Check every image and label map of a config before training.",
    "convert": "Convert published weights to mmsegmentation's names: FAMILY SRC DST.",
    "doctor": "Check what works on this machine and how fast; status 1 if a check fails.",
    "env": "Print versions, devices and registered names; status 1 if the mm stack is unusable.",
    "export": "Export a segmentor to ONNX or torch.export's .pt2; compare the file with the model.",
    "image_demo": "Segment an image or a folder; write label maps and overlays as PNG files.",
    "model_cost": "Count parameters and multiply-adds of configs; compute the memory of training.",
    "new_project": "Make a project from your images and masks: data folders and a fitting config.",
    "print_config": "Print the config and the run record that `train` would start with.",
    "publish_model": "Write the weights of a training checkpoint to a small file: IN OUT.",
    "report": "Write what one or several runs recorded on one HTML page.",
    "test": "Test a segmentor: mmsegmentation's flags.",
    "train": "Train a segmentor: mmsegmentation's flags, and --auto-scale-lr.",
    "where": "Print the folder of the configs; use it as `$(mmseg-ext where)/ea_r18_shapes.py`.",
}
"""The first line of each command's help, by name."""

# A disk that is full, over its quota, broken or read-only.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES}
_DISK |= {errno.ENOTDIR}


def start(name: str) -> NoReturn:
    """Run a command with this process's flags and exit with its status.

    Errors that the command foresees are one line. Any other exception prints Python's traceback and
    one line below it, with status 1. Ctrl-C prints one line, with status 130.
    """
    try:
        status = importlib.import_module(f"mmseg_ext.commands.{name}").main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
        status = 141  # what a shell reports of a process that SIGPIPE ended
    except KeyboardInterrupt:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # of the processes on a machine, the first one
            print("mmseg_ext: interrupted", file=sys.stderr)
        status = 130  # what a shell reports of a process that Ctrl-C ended
    except StackError as error:
        status = str(error)  # printed, with status 1
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split())[:300]
        print(f"mmseg_ext: {name} failed: {type(error).__name__}: {message}", file=sys.stderr)
        status = 1
    sys.exit(status)


@contextmanager
def exit_on_run_error():
    """End the process with one message if a run cannot start or continue.

    One process per machine prints a message that is the same in all processes.
    """
    import torch.distributed

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
        file = error.filename or "a file of the run"
        sys.exit(f"mmseg_ext: {file}: {error.strerror}; {SAFE_UNTIL_NOW}")
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
    import torch.distributed

    group = torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
    gc.collect()  # the wrapped model refers to the group in cycles
    del group  # last, from Python: its threads need the interpreter's lock to stop


def usable_device(name: str | None = None) -> "torch.device":
    """Return the device of this name; by default the GPU if there is one, else the CPU.

    Raises:
        ValueError: if PyTorch cannot use the device.
    """
    import torch

    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # the first where PyTorch is built without CUDA
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
