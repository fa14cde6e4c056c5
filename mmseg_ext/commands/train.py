"""Train a segmentor: mmsegmentation's flags, and --auto-scale-lr."""

import argparse

from mmseg_ext.commands import clean_end, command, command_parser, launcher_flags


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("config", help="name or path of the config")
    parser.add_argument("--work-dir", help="folder for logs and checkpoints")
    parser.add_argument("--resume", action="store_true", help="from the newest checkpoint, if any")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--auto-scale-lr", action="store_true", help="to the effective batch size")
    rescaled = "iterations; schedules and intervals keep their shares of them"
    parser.add_argument("--iterations", type=int, metavar="N", help=rescaled)
    timed = "measure the speed, and set the iterations that fit in this time with validations"
    parser.add_argument("--minutes", type=float, metavar="N", help=timed)
    resized = "short side of the crops; images and windows change by the same factor"
    parser.add_argument("--size", type=int, metavar="N", help=resized)
    launcher_flags(parser)
    return parser


def arguments(args: argparse.Namespace) -> dict:
    """Return the arguments of `mmseg_ext.train` for parsed flags."""
    given = vars(args).copy()
    given["options"] = given.pop("cfg_options")
    given.pop("local_rank")  # torchrun's, which the environment has, too
    return given


@command(parser)
def main(args: argparse.Namespace) -> None:
    """Train, and print the best checkpoint and the commands that use it."""
    from mmengine.dist import is_main_process

    from mmseg_ext.reports.run_data import next_commands
    from mmseg_ext.runs import train

    given = arguments(args)
    with clean_end():
        run = train(**given)
        if not is_main_process() or run.checkpoint is None:
            return
    about = "last checkpoint"
    if run.score is not None:
        about = f"best checkpoint, with a score of {run.score:.4g}"
    print(f"{about}: {run.checkpoint}\nNext:")
    for line in next_commands(run.config, run.checkpoint, run.work_dir, run.is_segmentor):
        print(f"  {line}")
