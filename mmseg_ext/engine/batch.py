"""The batch of a step, and the learning rate that fits it.

The effective batch is processes x images of each x accumulated batches. `auto_scale_lr` of a config
names the batch for which its learning rate was tuned. `plans` are the options that keep this batch
on another number of GPUs.
"""

from dataclasses import dataclass

from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner

from mmseg_ext.errors import LaunchError


def batch_settings(cfg: Config, world_size: int) -> dict:
    """Return the batch per process and per step, and the factor of `auto_scale_lr`."""
    wrapper, scaling = cfg.get("optim_wrapper") or {}, cfg.get("auto_scale_lr") or {}
    batch = (cfg.get("train_dataloader") or {}).get("batch_size")
    accumulated = wrapper.get("accumulative_counts", 1)
    effective = None if batch is None else world_size * batch * accumulated
    base = scaling.get("base_batch_size")
    factor = 1.0
    if scaling.get("enable", False) and base is not None and effective is not None:
        factor = effective / base
    return {
        "world_size": world_size,
        "batch_per_process": batch,
        "accumulated_batches": accumulated,
        "effective_batch": effective,
        "base_batch": base,
        "learning_rate_factor": factor,
    }


def enable_learning_rate_scaling(cfg: Config) -> None:
    """Enable the config's `auto_scale_lr`.

    Raises:
        LaunchError: if the config has no `auto_scale_lr.base_batch_size`.
    """
    if (cfg.get("auto_scale_lr") or {}).get("base_batch_size") is None:
        raise LaunchError(
            "--auto-scale-lr: the config has no base batch size; add auto_scale_lr = "
            "dict(base_batch_size=...)"
        )
    cfg.auto_scale_lr["enable"] = True


def fit_learning_rate(runner: Runner) -> None:
    """Log the factor of `auto_scale_lr`, or warn if the learning rate does not fit the batch size.

    The rule is linear (arXiv:1706.02677). mmengine multiplies the rate of every parameter group by
    processes x batch / base_batch_size. It ignores accumulation, so the base is divided by it.
    """
    found = batch_settings(runner.cfg, runner.world_size)
    base, effective = found["base_batch"], found["effective_batch"]
    if base is None or effective is None:
        return
    batches = f"configured batch {base}, effective batch {effective}"
    if runner.cfg.auto_scale_lr.get("enable", False):
        base_batch_size = base / found["accumulated_batches"]
        runner.auto_scale_lr = {"enable": True, "base_batch_size": base_batch_size}
        runner.logger.info(f"auto-scale-lr: {batches}, learning rate x {effective / base:g}")
    elif effective != base:
        batches_of_a_step = runner.world_size * found["accumulated_batches"]
        hint = ""
        if batches_of_a_step and base % batches_of_a_step == 0:
            images = base // batches_of_a_step
            hint = f"set --cfg-options train_dataloader.batch_size={images} to keep it, or "
        runner.logger.warning(
            f"auto_scale_lr: the learning rate was tuned for a different batch size ({batches}), "
            f"so the run sees {effective / base:g} of the schedule's images; {hint}add "
            f"--auto-scale-lr, which only multiplies the rate by {effective / base:g}"
        )


@dataclass
class Plan:
    """Options that train a config on `gpus` GPUs; `exact` if they keep the published protocol."""

    gpus: int
    images: int
    accumulation: int
    options: str
    exact: bool


def plans(config: Config, gpus: int) -> list[Plan]:
    """Return the ways to train a config on a number of GPUs, the exact one first.

    Equal batches are exact for SyncBN and models without batch norm. Accumulation is not exact with
    batch norm: its statistics are of the images that are on the GPUs together.
    """
    batch, images = config.auto_scale_lr.base_batch_size, config.train_dataloader.batch_size
    own, rest = divmod(batch, gpus)
    if rest:
        options = "--auto-scale-lr --cfg-options train_dataloader.batch_size=1"
        found = [Plan(gpus, 1, 1, options, False)]
    else:
        options = ""
        if own != images:
            options = f"--cfg-options train_dataloader.batch_size={own}"
        exact = own == images or not _has_norm(config.model, "BN")
        found = [Plan(gpus, own, 1, options, exact)]
    times, rest = divmod(batch, gpus * images)
    if times > 1 and not rest:
        exact = not (_has_norm(config.model, "BN") or _has_norm(config.model, "SyncBN"))
        found.append(Plan(gpus, images, times, _accumulation(config, times), exact))
    return found


def _has_norm(model: ConfigDict, kind: str) -> bool:
    return f"'type': '{kind}'" in str(model.to_dict())


def _accumulation(config: Config, times: int) -> str:
    """Return options that accumulate `times` batches a step and count iterations accordingly."""
    options = {"optim_wrapper.accumulative_counts": times}
    for key in ("max_iters", "val_interval"):
        options[f"train_cfg.{key}"] = times * config.train_cfg[key]
    options["default_hooks.checkpoint.interval"] = times * config.default_hooks.checkpoint.interval
    for i, scheduler in enumerate(config.param_scheduler):
        for key in ("begin", "end", "interval"):
            if scheduler.get(key):
                options[f"param_scheduler.{i}.{key}"] = times * scheduler[key]
    return "--cfg-options " + " ".join(f"{key}={value}" for key, value in options.items())
