"""Print the config and the run record that `train` would start with."""

import argparse
import json
import os
from dataclasses import asdict

from mmseg_ext.commands import command, train


def parser() -> argparse.ArgumentParser:
    parser = train.parser()
    parser.description = __doc__
    parser.add_argument(
        "--world-size", type=int, help="also print the options for this number of GPUs"
    )
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    """Print the resolved config and the record of `run.json`, without building a model.

    With `--world-size` the record has `plans`: ways to train on so many GPUs. Otherwise
    `WORLD_SIZE` is the number of processes.
    """
    from mmseg_ext.engine.batch import plans
    from mmseg_ext.engine.build import Training
    from mmseg_ext.engine.run_record import describe_run

    if args.minutes is not None:
        raise ValueError("--minutes: needs a training to measure the speed; set --iterations")
    if args.world_size is not None and args.world_size < 1:
        raise ValueError(f"--world-size {args.world_size}: set the number of GPUs, 1 or more")
    training = Training(
        args.config,
        args.cfg_options,
        args.work_dir,
        args.launcher,
        args.amp,
        args.auto_scale_lr,
        args.iterations,
        args.size,
    )
    cfg = training.resolve()
    seed = cfg.get("randomness", {}).get("seed")
    processes = args.world_size or int(os.environ.get("WORLD_SIZE", 1))
    record = describe_run(cfg, processes, seed)
    if args.world_size and "auto_scale_lr" in cfg:
        record["plans"] = [asdict(plan) for plan in plans(cfg, args.world_size)]
    print(cfg.pretty_text)
    print(json.dumps(record, indent=2, default=str))
