"""Flags that several commands share.

A command's module imports torch and mmsegmentation only after its flags are read. They take seconds
to import, and `--help` and a wrong flag are answered before.
"""

import argparse
import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mmseg_ext import environment, register, safe_loading, use_operators_in_pytorch
from mmseg_ext.commands import report_error
from mmseg_ext.environment import BASE, STACK, check_stack

if TYPE_CHECKING:
    import torch


def command_parser(description: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the first line of `description`; line breaks of `epilog` are kept."""
    layout = argparse.RawDescriptionHelpFormatter if epilog else argparse.HelpFormatter
    return argparse.ArgumentParser(
        description=(description or "").partition("\n")[0], epilog=epilog, formatter_class=layout
    )


def command(
    parser: Callable[[], argparse.ArgumentParser],
    stack: Sequence[str] | None = STACK,
    failed: int = 1,
) -> Callable:
    """Turn a function of parsed flags into `main(argv)`, which returns the exit status.

    It is `failed` after an error. A `ValueError` and an `OSError` are foreseen: see `report_error`,
    and `read_flags` for `stack`.
    """

    def decorate(run: Callable[[argparse.Namespace], int | None]) -> Callable:
        @functools.wraps(run)
        def main(argv: Sequence[str] | None = None) -> int:
            try:
                args = read_flags(parser(), argv, stack)
                with safe_loading() if stack else contextlib.nullcontext():
                    return run(args) or 0
            except BrokenPipeError:
                raise
            except Exception as error:
                report_error(error, run.__module__.rpartition(".")[2], (OSError, ValueError))
                return failed

        return main

    return decorate


def read_flags(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    stack: Sequence[str] | None = STACK,
) -> argparse.Namespace:
    """Parse `argv`, or with None the flags of this process, which then imports and registers.

    Raises:
        StackError: if a package in `stack` is missing or cannot be used. With None nothing is
            imported.
    """
    args = parser.parse_args(argv)
    if argv is None and stack is not None:
        prepare_stack()
        if stack:
            check_stack(tuple(stack))
    return args


def prepare_stack() -> None:
    """Import what is installed of the mm stack, and register this package's models."""
    register()
    if environment.COMPILED_OPERATORS in (environment.stack_problem() or ""):
        use_operators_in_pytorch()


class ConfigOptions(argparse.Action):
    """mmengine's KEY=VALUE pairs of `--cfg-options`; a pair without '=' is a usage error."""

    def __call__(self, parser, namespace, values, option_string=None):
        for value in values or ():
            if "=" not in value:
                parser.error(f"argument {option_string}: expected KEY=VALUE, got {value!r}")
        check_stack(BASE)
        from mmengine.config import DictAction

        DictAction(self.option_strings, self.dest)(
            parser, namespace, values, option_string or "--cfg-options"
        )


def config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        action=ConfigOptions,
        metavar="KEY=VALUE",
        help="override settings of the config, e.g. train_cfg.max_iters=100 "
        'model.backbone.init_cfg=None key="[(a,b),(c,d)]" (no spaces within a value)',
    )


def device_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the GPU if there is one)")


def model_flags(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and CHECKPOINT, which `named_model` reads."""
    parser.add_argument("config", nargs="?", help="name or path (default: the project's own model)")
    parser.add_argument("checkpoint", nargs="?", help="file, or 'none' for random weights")


def named_model(args: argparse.Namespace, device: "str | torch.device" = "cpu") -> Any:
    """Return the segmentor of the flags CONFIG and CHECKPOINT."""
    from mmseg_ext.inference.models import DEFAULT, get_model

    if not args.config:
        return get_model(DEFAULT, pretrained=True, device=device)
    if not args.checkpoint:
        raise ValueError(f"{args.config}: name a checkpoint after it, or 'none'")
    weights = None if args.checkpoint == "none" else args.checkpoint
    return get_model(args.config, weights=weights, device=device)


def launcher_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--cfg-options` and the flags that tell how processes are started."""
    config_flag(parser)
    launchers = ["none", "pytorch", "slurm", "mpi"]
    parser.add_argument("--launcher", choices=launchers, default="none", help="of processes")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0)


def read_launch_flags(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> argparse.Namespace:
    """Return `read_flags`, with the rank that the launcher gave this process as LOCAL_RANK.

    Detectors and classifiers train and test without mmsegmentation.
    """
    siblings = find_spec("mmdet") or find_spec("mmpretrain")
    args = read_flags(parser, argv, BASE if siblings and not find_spec("mmseg") else STACK)
    if args.launcher == "slurm":  # messages need LOCAL_RANK before the process group exists
        from mmseg_ext.engine.distributed import name_slurm_process

        name_slurm_process()
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    return args
