"""Print the config and the run record that `train` would start with."""

import argparse
import json
import os
from collections.abc import Sequence

from mmseg_ext.commands import train
from mmseg_ext.commands._flags import read_launch_flags


def parser() -> argparse.ArgumentParser:
    parser = train.parser()
    parser.description = __doc__
    parser.add_argument(
        "--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", 1)), help="processes"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Print the resolved config, then the record of `run.json`; nothing is built or written.

    The number of processes is `WORLD_SIZE` where that is set, else `--world-size`.
    """
    args = read_launch_flags(parser(), argv)
    from mmseg_ext.commands._launch import exit_on_run_error
    from mmseg_ext.engine.amp import enable_amp
    from mmseg_ext.engine.launch import enable_learning_rate_scaling, load_settings
    from mmseg_ext.engine.run_record import describe_run

    with exit_on_run_error():
        cfg = load_settings(args.config, args.cfg_options, args.work_dir, args.launcher)
        if args.amp:
            enable_amp(cfg)
        if args.auto_scale_lr:
            enable_learning_rate_scaling(cfg)
        seed = cfg.get("randomness", {}).get("seed")
        record = describe_run(cfg, args.world_size, seed)
    print(cfg.pretty_text)
    print(json.dumps(record, indent=2, default=str))
