"""Options that keep a config's published batch on another number of GPUs."""

from dataclasses import dataclass

from mmengine.config import Config, ConfigDict


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
