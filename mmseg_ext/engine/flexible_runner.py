"""What mmengine's `FlexibleRunner` (0.10.12) needs of a config that was made for `DurableRunner`.

    --cfg-options runner_type=FlexibleRunner [strategy.type=DDPStrategy]

It leaves the model, the optimizer and the checkpoints to a strategy: one device, or DDP where a
launcher started several processes. docs/reliability.md says which promises hold there.
"""

import importlib
import inspect
import uuid
from pathlib import Path

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.registry import HOOKS, RUNNERS
from mmengine.runner import FlexibleRunner

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.checkpoint.load_report import check_coverage, require_coverage
from mmseg_ext.checkpoint.resuming import newest_whole, require_resumable
from mmseg_ext.engine.checkpoint_hook import DurableCheckpointHook, checkpoint_folder
from mmseg_ext.engine.distributed import process_wrapper
from mmseg_ext.errors import LaunchError

# Settings of mmengine's Runner that FlexibleRunner would ignore, and what it has instead.
_IGNORED = {
    "model_wrapper_cfg": "its own is strategy.model_wrapper, of DDPStrategy; shards of the state "
    "(FullyShardedModel) are for runner_type='DurableRunner'",
    "sync_bn": "its own is strategy.sync_bn, of DDPStrategy",
    "compile": "compiled training is for runner_type='DurableRunner'",
}


@HOOKS.register_module()
class FlexibleCheckpointHook(DurableCheckpointHook):
    """`DurableCheckpointHook` for `FlexibleRunner`, which writes in place and counts wrongly.

    Without it a checkpoint that a validation follows says one iteration too many, and a run that is
    resumed from it leaves that one out. The best checkpoints are written in place.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._run_id = uuid.uuid4().hex  # a resumed run takes the checkpoint's

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        if runner._resume:
            require_resumable(checkpoint, str(runner._load_from))
            with require_coverage(whole=True):
                check_coverage(runner.strategy.model, checkpoint["state_dict"])
            self._run_id = checkpoint["meta"].get("run") or self._run_id

    def before_train(self, runner) -> None:
        runner.run_id = self._run_id
        super().before_train(runner)

    def before_save_checkpoint(self, runner, checkpoint: dict) -> None:
        meta, last = checkpoint["meta"], runner.message_hub.runtime_info
        meta["run"] = self._run_id
        meta["iter"] = last["iter"] + 1
        if self.by_epoch:
            meta["epoch"] = last["epoch"] + 1

    def _write(self, runner, name: str, meta: dict) -> None:
        if not is_main_process():  # takes part and writes nothing
            super()._write(runner, name, meta)
            return
        with atomic_write(Path(self.out_dir, name)) as part:
            super()._write(runner, part.name, meta)


def is_flexible(cfg: Config) -> bool:
    kind = cfg.get("runner_type", "Runner")
    kind = RUNNERS.get(kind) if isinstance(kind, str) else kind
    return inspect.isclass(kind) and issubclass(kind, FlexibleRunner)


def fit_strategy(cfg: Config) -> None:
    """Give a config whose runner is `FlexibleRunner` the strategy and hook that it will use.

    Raises:
        LaunchError: for what this runner would ignore or cannot do, and for a strategy with
            another runner, which would ignore it.
    """
    if not is_flexible(cfg):
        if cfg.get("strategy") is not None:
            raise LaunchError(
                "strategy: only FlexibleRunner has one, and runner_type is "
                f"{cfg.get('runner_type', 'Runner')!r}; set runner_type='FlexibleRunner', or "
                "leave strategy out: several processes are DDP by themselves, shards of the state "
                "are model_wrapper_cfg=dict(type='FullyShardedModel')"
            )
        return
    for key, instead in _IGNORED.items():
        if cfg.get(key):
            raise LaunchError(f"{key}: FlexibleRunner does not read it; {instead}")
    several = cfg.launcher != "none"
    strategy = cfg.get("strategy") or {}
    strategy.setdefault("type", "DDPStrategy" if several else "SingleDeviceStrategy")
    _check_strategy(strategy["type"], cfg, several)
    _check_parts(cfg)
    if strategy["type"] == "DDPStrategy":
        strategy["model_wrapper"] = process_wrapper(cfg, strategy.get("model_wrapper"))
    cfg.strategy = strategy
    hook = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
    if hook.get("type") == "DurableCheckpointHook":
        hook["type"] = "FlexibleCheckpointHook"


def name_resumed(cfg: Config) -> list[str]:
    """Have a resumed run of `FlexibleRunner` start from the newest whole checkpoint of its folder.

    mmengine would follow whatever `last_checkpoint` names, to any place. Given back is what is
    wrong with the checkpoints that are newer than the one that is taken.

    Raises:
        CheckpointError: where there are checkpoints and none is whole.
    """
    if not is_flexible(cfg) or not cfg.get("resume") or cfg.get("load_from"):
        return []
    path, problems = newest_whole(checkpoint_folder(cfg))
    cfg.load_from = None if path is None else str(path)
    cfg.resume = path is not None
    return problems


def _check_strategy(kind: str, cfg: Config, several: bool) -> None:
    if kind == "SingleDeviceStrategy" and several:
        raise LaunchError(
            f"strategy.type='SingleDeviceStrategy' with --launcher {cfg.launcher}: each process "
            "would train a model of its own; set strategy.type='DDPStrategy'"
        )
    if kind == "DDPStrategy" and not several:
        raise LaunchError(
            "strategy.type='DDPStrategy' needs processes: start through tools/dist_train.sh, "
            "tools/slurm_train.sh or their twins for tests, or leave strategy out"
        )
    if kind == "FSDPStrategy" and get_device() == "cpu":
        raise LaunchError(
            "strategy.type='FSDPStrategy' needs GPUs and none is visible; "
            "runner_type='DurableRunner' with model_wrapper_cfg=dict(type='FullyShardedModel') "
            "shards on the CPU too"
        )
    if kind == "DeepSpeedStrategy":
        try:
            importlib.import_module("deepspeed.runtime.fp16.onebit")
        except ImportError as error:
            raise LaunchError(
                "strategy.type='DeepSpeedStrategy': mmengine needs a DeepSpeed that has "
                f"deepspeed.runtime.fp16.onebit, as 0.16.9 has and 0.19.8 has not ({error})"
            ) from error


def _check_parts(cfg: Config) -> None:
    """What trains and saves, and what could then not be saved or loaded."""
    optimizer = (cfg.get("optim_wrapper") or {}).get("optimizer") or {}
    if optimizer.get("type") == "ZeroRedundancyOptimizer":
        raise LaunchError(
            "optim_wrapper.optimizer.type='ZeroRedundancyOptimizer': FlexibleRunner cannot save "
            "its state, which takes every process; use runner_type='DurableRunner'"
        )
    if any(hook.get("type") == "EMAHook" for hook in cfg.get("custom_hooks") or ()):
        raise LaunchError(
            "custom_hooks: FlexibleRunner loads weights before EMAHook has its average, so that "
            "no checkpoint of the run could be resumed or tested; use runner_type='DurableRunner'"
        )
