"""Train a segmentor: mmsegmentation's flags, and --auto-scale-lr."""

import argparse
from pathlib import Path

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
    resized = "short side of the crops; images and windows change by the same factor"
    parser.add_argument("--size", type=int, metavar="N", help=resized)
    launcher_flags(parser)
    return parser


def runner_of(args: argparse.Namespace):
    """Build the Runner for parsed flags."""
    from mmseg_ext.engine.build import build_train_runner

    return build_train_runner(
        args.config,
        args.cfg_options,
        args.work_dir,
        args.launcher,
        args.resume,
        args.amp,
        args.auto_scale_lr,
        args.iterations,
        args.size,
    )


@command(parser)
def main(args: argparse.Namespace) -> None:
    """Train until the run finishes or a signal stops it."""
    from mmseg_ext.checkpoint.safe_loading import safe_loading
    from mmseg_ext.cost.model_cost import write_cost
    from mmseg_ext.engine.build_errors import explained
    from mmseg_ext.terminal import ProgressHook, logged_warnings

    with clean_end(), logged_warnings():
        runner = runner_of(args)
        runner.register_hook(ProgressHook())
        # Also for mmengine's Runner, which does not read the key.
        share = runner.cfg.get("min_backbone_share")
        with explained(runner.cfg, runner.model), safe_loading(share):
            runner.train()
        write_cost(runner)
        if runner.rank == 0:
            _print_next(args, runner)


def _print_next(args: argparse.Namespace, runner) -> None:
    """Print the best checkpoint of a training, and the commands that use it."""
    from mmseg_ext.checkpoint.safe_loading import unwrap_model
    from mmseg_ext.reports.run_data import next_commands

    info = runner.message_hub.runtime_info
    best = [key for key in info if key.startswith("best_ckpt") and info[key]]
    kept = info[best[0]] if best else info.get("last_ckpt")
    if kept is None:  # `default_hooks.checkpoint=None`
        return
    checkpoint, work_dir = Path(kept).resolve(), Path(runner.work_dir).resolve()
    config = Path(runner.cfg.filename).resolve()
    if args.cfg_options or args.iterations or args.size:  # the copy in the work directory has them
        config = work_dir / config.name
    is_segmentor = hasattr(unwrap_model(runner.model), "encode_decode")
    about = "last checkpoint"
    if best:
        score = info[best[0].replace("ckpt", "score", 1)]
        about = f"best checkpoint, with a score of {score:.4g}"
    print(f"{about}: {checkpoint}\nNext:")
    for line in next_commands(config, checkpoint, work_dir, is_segmentor):
        print(f"  {line}")
