"""Train and test configs with several seeds, and write a table that compares them."""

import argparse
import json
from pathlib import Path

from mmseg_ext.commands import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__, "Started again, the command continues where it was stopped.")
    parser.add_argument("configs", nargs="+", help="names or paths; differences are to the first")
    parser.add_argument(
        "--data", nargs="+", default=[], help="projects or configs whose images all models get"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(0 1 2)")
    parser.add_argument("--out", type=Path, default=Path("work_dirs/compare"), help="its folder")
    parser.add_argument("--iterations", type=int, metavar="N", help="of each training")
    parser.add_argument("--minutes", type=float, metavar="N", help="of each training, measured")
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        default=[1.0],
        help="factors of the learning rate; the best one by validation counts",
    )
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=["mIoU"],
        help="mIoU, mDice, IoU.CLASS, Dice.CLASS (mIoU)",
    )
    parser.add_argument("--tta", action="store_true", help="also test-time augmentation")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time on a CPU (1)")
    parser.add_argument("--gpus", nargs="+", default=[], help="numbers; one training on each")
    parser.add_argument("--dry-run", action="store_true", help="print the command of each run")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # of a plan, in a process
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int:
    from mmseg_ext.comparison import execute, timing

    if args.measure:
        costs = timing.measure([Path(config) for config in args.configs])
        args.measure.write_text(json.dumps(costs))
        return 0
    arguments = vars(args)
    for name in ("measure", "dry_run"):
        arguments.pop(name)
    records = execute.compare(**arguments)
    print(records)
    return 0
