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
