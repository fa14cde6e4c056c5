"""The commands, one module each: `parser()` returns its flags, `main(argv)` the exit status.

`mmseg-ext NAME` and the file of that name under `tools/` start the same function. Here are the
start of a command, its errors, and the flags that several have.

A command's module imports torch and mmsegmentation only after its flags are read. They take seconds
to import, and `--help` and a wrong flag are answered before.
"""

import argparse
import contextlib
import errno
import functools
import gc
import importlib
import logging
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from mmseg_ext import (
    __version__,
    environment,
    errors,
    register,
    use_operators_in_pytorch,
)
from mmseg_ext.environment import BASE, STACK, check_stack

if TYPE_CHECKING:
    import torch

CONFIG_SUFFIXES = (".py", ".json", ".yaml", ".yml")  # which mmengine reads
WEIGHTS_SUFFIXES = (".pth", ".safetensors")
COMMANDS = sorted(module.name for module in pkgutil.iter_modules(__path__))
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of a disk, without a file


def main() -> NoReturn:
    """List the commands, or start the named one."""
    width = max(map(len, COMMANDS))
    table = ""
    for name in COMMANDS:
        about = importlib.import_module(f"mmseg_ext.commands.{name}").parser().description
        table += f"{name:<{width}}  {about}\n"
    parser = command_parser("mmseg-ext COMMAND --help lists the flags of a command.", table)
    parser.prog = "mmseg-ext"
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("flags", nargs=argparse.REMAINDER, metavar="...")
    args = parser.parse_args(sys.argv[1:] or ["--help"])
    flags = sys.argv[sys.argv.index(args.command) + 1 :]  # argparse leaves out a `--`
    sys.argv = [f"mmseg-ext {args.command}", *flags]
    start(args.command)


def start(name: str) -> NoReturn:
    """Run a command with this process's flags and exit with its status."""
    logging.raiseExceptions = False  # else each line of a log on a full disk prints a traceback
    process = os.getpid()

    def interrupt(number: int, frame) -> None:
        """End as by Ctrl-C, so that what is done is kept."""
        if os.getpid() != process:  # a worker, which inherits the handler
            os._exit(128 + number)
        raise KeyboardInterrupt(number)

    # Of several processes one can wait in a collective call for another one that has failed.
    # Python's handlers run only after such a call.
    is_one_of_several = bool({"RANK", "SLURM_PROCID"} & os.environ.keys())
    if not is_one_of_several and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)
    sys.exit(run(name))


def run(name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command with `argv` or this process's flags, print its error, and return its status.

    A foreseen error is one line. Any other exception prints Python's traceback above the line.
    Ctrl-C has status 130, SIGTERM 143 and a closed pipe 141, as in a shell.
    """
    try:
        status = importlib.import_module(f"mmseg_ext.commands.{name}").main(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
        return 141
    except KeyboardInterrupt as error:
        return _report_interrupt(name, error)
    except Exception as error:
        # mmengine raises a SyntaxError if Ctrl-C stops it while it formats a checkpoint's config.
        if isinstance(error.__context__, KeyboardInterrupt):
            return _report_interrupt(name, error.__context__)
        report_error(error, name)
        return 2 if name == "check_dataset" else 1  # whose status 1 means problems of the data


def _report_interrupt(name: str, error: KeyboardInterrupt) -> int:
    hint = "; --resume continues from the newest checkpoint" if name == "train" else ""
    _print_error(f"interrupted{hint}")
    return 128 + (error.args[0] if error.args else signal.SIGINT)


def report_error(error: Exception, name: str) -> None:
    """Print the line of an error, below the traceback of an error that is not foreseen.

    What all processes raise is printed by the first process of the machine.
    """
    line = _line_of(error, name)
    if line is None:
        traceback.print_exception(error)
        line = f"{name} failed: {errors.format_error(error)}"
    rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    if rank == "0" or not isinstance(error, errors.LaunchError | errors.CheckpointError):
        _print_error(line)


def _print_error(line: str) -> None:
    # In one call: `print` writes the end of a line by itself if PYTHONUNBUFFERED is set, and the
    # lines of two processes would mix.
    sys.stderr.write(f"mmseg_ext: {line}\n")


def _line_of(error: Exception, name: str) -> str | None:
    """Return the message of a foreseen error, or None.

    Foreseen are the errors of this package, errors of files, and wrong values that it found.
    """
    kind = type(error)
    if kind.__module__ == errors.__name__:
        # A DataLoader's worker sends a traceback whose last line is "module.LabelError: <message>".
        last_line = str(error).strip().splitlines()[-1]
        last_line = last_line.removeprefix("mmseg_ext: ")
        return last_line.removeprefix(f"{kind.__module__}.{kind.__name__}: ")
    if isinstance(error, OSError) and (error.filename or error.errno in _FULL):
        text = f"{error.filename or 'a file of the run'}: {error.strerror}"
        return f"{text}; {errors.RESUME_HINT}" if name == "train" else text
    last_frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    found_here = last_frame.f_globals.get("__name__", "").startswith("mmseg_ext.")
    if found_here and isinstance(error, OSError | ValueError):
        return str(error)
    return None


@contextlib.contextmanager
def clean_end() -> Iterator[None]:
    """Destroy a run's process group and stop gloo's threads while the interpreter is running.

    A thread that releases a tensor after the interpreter has ended aborts the process, and a
    finished run would exit with a failure. With nccl, a rank that failed would wait for the others.
    """
    import torch.distributed

    try:
        yield
    finally:
        if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
            group = torch.distributed.group.WORLD
            torch.distributed.destroy_process_group()
            gc.collect()  # the wrapped model refers to the group in cycles
            del group  # last, from Python: its threads need the interpreter's lock to stop


def command_parser(description: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the first line of `description`; line breaks of `epilog` are kept."""
    first_line = (description or "").partition("\n")[0]
    layout = argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter
    return argparse.ArgumentParser(description=first_line, epilog=epilog, formatter_class=layout)


def command(parser: Callable[[], argparse.ArgumentParser], stack: bool = True) -> Callable:
    """Turn a function of parsed flags into `main(argv)`, which returns the exit status.

    Args:
        stack: in a process that the command has to itself, import the stack and register this
            package's models after the flags are read.
    """

    def decorate(body: Callable[[argparse.Namespace], int | None]) -> Callable:
        @functools.wraps(body)
        def main(argv: Sequence[str] | None = None) -> int:
            args = parser().parse_args(argv)
            if stack and argv is None:
                prepare_stack()
                # Detectors and classifiers work without mmsegmentation.
                sibling = find_spec("mmdet") or find_spec("mmpretrain")
                check_stack(BASE if sibling and not find_spec("mmseg") else STACK)
            return body(args) or 0

        return main

    return decorate


def prepare_stack() -> None:
    """Import what is installed of the mm stack, and register this package's models."""
    register()
    if environment.COMPILED_OPERATORS in (environment.stack_problem() or ""):
        use_operators_in_pytorch()


class ConfigOptions(argparse.Action):
    """mmengine's KEY=VALUE pairs of `--cfg-options`; a pair without '=' is a usage error.

    A text keeps its spaces, as in a path or the name of a class. mmengine removes them.
    """

    def __call__(self, parser, namespace, values, option_string=None):
        for value in values or ():
            if "=" not in value:
                parser.error(f"argument {option_string}: expected KEY=VALUE, got {value!r}")
        check_stack(BASE)
        from mmengine.config import DictAction

        DictAction(self.option_strings, self.dest)(
            parser, namespace, values, option_string or "--cfg-options"
        )
        options = getattr(namespace, self.dest)
        for key, _, text in (value.partition("=") for value in values or ()):
            if isinstance(options[key], str):
                options[key] = text.strip("'\" ")


def config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=ConfigOptions,
        metavar="KEY=VALUE",
        help="override settings of the config, e.g. train_cfg.max_iters=100 "
        'model.backbone.init_cfg=None key="[(a,b),(c,d)]" (no spaces within a list)',
    )


def device_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the GPU if there is one)")


def usable_device(name: str | None = None) -> "torch.device":
    """Return the device of this name; by default the GPU if there is one, else the CPU.

    Raises:
        ValueError: if PyTorch cannot use the device.
    """
    import torch

    if not name:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # the first where PyTorch is built without CUDA
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def model_flags(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and CHECKPOINT, which `named_model` reads."""
    parser.add_argument("config", nargs="?", help="name or path (default: the project's own model)")
    parser.add_argument(
        "checkpoint",
        nargs="?",
        help="file, or 'none' for random weights (default: the package's weights)",
    )


def named_model(args: argparse.Namespace) -> Any:
    """Return the segmentor of the flags CONFIG and CHECKPOINT, on the device of `--device`."""
    from mmseg_ext.engine.config import load_config
    from mmseg_ext.inference.models import DEFAULT, get_model, list_models
    from mmseg_ext.terminal import plain_warnings

    name = args.config or DEFAULT
    pretrained = not args.checkpoint
    if name.endswith(WEIGHTS_SUFFIXES):
        raise ValueError(f"{name}: is a checkpoint; name its config before it")
    config = load_config(name, getattr(args, "cfg_options", None))
    if pretrained and name not in list_models(pretrained=True):
        raise ValueError(f"{name}: has no weights here; name a checkpoint after it, or 'none'")
    weights = None if args.checkpoint == "none" else args.checkpoint
    device = usable_device(getattr(args, "device", "cpu"))  # `export` has no such flag
    with plain_warnings():
        return get_model(config, pretrained=pretrained, weights=weights, device=device)


def launcher_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--cfg-options` and the flags that tell how processes are started."""
    config_flag(parser)
    launchers = ["none", "pytorch", "slurm", "mpi"]
    parser.add_argument("--launcher", choices=launchers, default="none", help="of processes")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0)
