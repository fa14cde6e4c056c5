"""Count parameters and multiply-adds of configs; compute the memory of training."""

import argparse
from pathlib import Path

from mmseg_ext.commands import command, command_parser, config_flag


def parser() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--train", action="store_true", help="GiB of a training step on a GPU")
    parser.add_argument("--amp", action="store_true", help="with --train: mixed precision")
    config_flag(parser)
    parser.add_argument("--batch", type=int, help="with --train: images per GPU, not the config's")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmengine.logging import MMLogger

    from mmseg_ext.cost.model_cost import HEADINGS, cells, count_config, markdown
    from mmseg_ext.cost.step_memory import MEMORY_HEADINGS, memory_cells, training_memory
    from mmseg_ext.engine.config import load_config

    MMLogger.get_current_instance().setLevel("WARNING")  # a line for each parameter
    rows = []
    for path in args.configs:
        if not args.train:
            rows.append(cells(path.stem, count_config(path, args.cfg_options)))
            continue
        config = load_config(str(path), args.cfg_options)
        if args.batch:
            config.train_dataloader.batch_size = args.batch
        rows.append(memory_cells(path.stem, config, training_memory(config, args.amp)))
    print(markdown(MEMORY_HEADINGS if args.train else HEADINGS, rows), end="")
