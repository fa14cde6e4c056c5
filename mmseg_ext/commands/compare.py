"""Train and test configs with several seeds, and write a table that compares them."""

import argparse
import json
from pathlib import Path

from mmseg_ext.commands import command, command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__, "Started again, the command continues where it was stopped.")
    parser.add_argument("configs", nargs="+", metavar="CONFIG", help="name or path of a config")
    of_data = "projects or configs whose images all models get"
    parser.add_argument("--data", nargs="+", default=[], metavar="DATA", help=of_data)
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="0 1 2"
    )
    parser.add_argument("--out", type=Path, default=Path("work_dirs/compare"), help="folder")
    parser.add_argument("--iterations", type=int, metavar="N", help="of each training")
    parser.add_argument("--minutes", type=float, metavar="N", help="equal time of training")
    rates = "factors of the learning rate; a config's best one by validation counts"
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0], metavar="F", help=rates)
    metrics = "mIoU, mDice, boundary; IoU.CLASS, Dice.CLASS, boundary.CLASS, objects.CLASS"
    parser.add_argument("--metrics", nargs="+", default=["mIoU"], metavar="NAME", help=metrics)
    parser.add_argument("--tta", action="store_true", help="also with test-time augmentation")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="at a time on a CPU")
    gpus = "numbers; one training at a time on each"
    parser.add_argument("--gpus", nargs="+", type=int, default=[], metavar="N", help=gpus)
    parser.add_argument("--dry-run", action="store_true", help="print a line for each run")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # a process of the plan
    return parser


@command(parser)
def main(args: argparse.Namespace) -> int:
    """Compare; return 1 if a run failed."""
    from mmseg_ext.comparison.execute import compare
    from mmseg_ext.comparison.timing import measure

    arguments = vars(args)
    file = arguments.pop("measure")
    if file is not None:
        file.write_text(json.dumps(measure([Path(config) for config in args.configs])))
        return 0
    records = compare(**arguments)
    return int(any(record["failed"] for record in records))
