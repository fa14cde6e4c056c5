"""A shorter training, or smaller images, for any config: the flags --iterations and --size."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import Config, ConfigDict

from mmseg_ext.engine.config import as_list, crop_size, inner_datasets, settings_inside, type_name
from mmseg_ext.errors import LaunchError

_LENGTHS = ("T_max", "milestones", "periods", "step_size", "total_steps")  # of schedulers
_RESIZES = ("RandomChoiceResize", "RandomResize", "Resize")
_CROPS = ("RandomCrop", "LabeledRandomCrop")
_TRANSFORMS = (*_RESIZES, "Pad", *_CROPS)
_SIZES = ("crop_size", "scale", "scale_factor", "scales", "size", "stride")  # of transforms, ...


def rescale(cfg: Config, iterations: int | None = None, size: int | None = None) -> None:
    """Change the length of a training, and the size of its images, in place.

    With `iterations`, schedules and intervals keep their shares of the training. `size` is the
    short side of the crops; images, windows and pads change by the same factor. If training cuts
    the crops from images at their own scale, the images keep it.

    Raises:
        LaunchError: with `iterations` for a config that counts epochs, or has several schedules,
            and with `size` for a config without crops.
    """
    if iterations is not None:
        _set_iterations(cfg, iterations)
    if size is not None:
        _set_size(cfg, size)


def _set_iterations(cfg: Config, iterations: int) -> None:
    loop, schedulers = cfg.get("train_cfg") or {}, cfg.get("param_scheduler")
    flag = f"--iterations {iterations}"
    if iterations < 1:
        raise LaunchError(f"{flag}: must be positive")
    if "max_iters" not in loop:
        raise LaunchError(f"{flag}: train_cfg has no max_iters; set train_cfg.max_epochs instead")
    if isinstance(schedulers, dict) and "type" not in schedulers:
        raise LaunchError(f"{flag}: param_scheduler has several schedules; use --cfg-options")
    factor = iterations / loop["max_iters"]
    loop["max_iters"] = iterations
    loop.setdefault("val_interval", 1000)  # mmengine's
    checkpoint = (cfg.get("default_hooks") or {}).get("checkpoint") or {}
    _scale_keys(loop, ("val_interval", "val_begin", "dynamic_intervals"), factor)
    if not checkpoint.get("by_epoch", True):
        counted = [key for key in ("interval", "save_begin") if checkpoint.get(key, 0) > 0]
        _scale_keys(checkpoint, counted, factor)
    for hook in cfg.get("custom_hooks") or ():
        if isinstance(hook, dict) and hook.get("begin_iter"):  # EMAHook
            _scale_keys(hook, ("begin_iter",), factor)
    for scheduler in as_list(schedulers):
        if scheduler.get("by_epoch", True):
            continue
        _scale_keys(scheduler, _LENGTHS, factor)
        begin = min(round(scheduler.get("begin", 0) * factor), iterations - 1)
        if "begin" in scheduler:
            scheduler["begin"] = begin
        if "end" in scheduler:
            # With a single iteration, LinearLR would leave the rate at its start_factor.
            scheduler["end"] = max(round(scheduler["end"] * factor), begin + 2)


def _set_size(cfg: Config, size: int) -> None:
    if size < 1:
        raise LaunchError(f"--size {size}: must be positive")
    factor = size / min(crop_size(cfg))
    sized: list[Any] = [cfg, cfg.model.get("test_cfg")]
    for preprocessor in (cfg.get("data_preprocessor"), cfg.model.get("data_preprocessor")):
        sized += [preprocessor, (preprocessor or {}).get("test_cfg")]
    pipelines = _pipelines(cfg, "train_dataloader")
    tested = []
    if any(map(_resizes_images, pipelines)):
        tested = [*_pipelines(cfg, "val_dataloader"), *_pipelines(cfg, "test_dataloader")]
        pipelines += [*tested, cfg.get("tta_pipeline")]
    for _, step in settings_inside("pipelines", pipelines):  # also of transforms inside others
        if isinstance(step, Mapping) and "type" in step and type_name(step) in _TRANSFORMS:
            sized.append(step)
    for settings in sized:
        _scale_keys(settings or {}, _SIZES, factor)
    for steps in tested:
        if not _resizes_images(steps):  # then after the loading
            steps.insert(1, ConfigDict(type="Resize", scale_factor=factor, keep_ratio=True))


def _pipelines(cfg: Config, loader: str) -> list[list]:
    settings = (cfg.get(loader) or {}).get("dataset") or {}
    return [dataset.get("pipeline", []) for dataset in inner_datasets(settings)]


def _resizes_images(steps: list) -> bool:
    """Return whether a pipeline resizes images, and not only crops of them."""
    kinds = [type_name(step) for step in steps]
    end = next((i for i, kind in enumerate(kinds) if kind in _CROPS), len(kinds))
    return any(kind in _RESIZES for kind in kinds[:end])


def _scale_keys(settings: Any, keys: Sequence[str], factor: float) -> None:
    for key in keys:
        if key in settings:
            value = settings[key]
            if key == "scale_factor" and isinstance(value, int):
                value = float(value)
            settings[key] = _scaled(value, factor)


def _scaled(value: Any, factor: float) -> Any:
    """Scale a number, or all numbers of lists and tuples; integers and None stay such."""
    if isinstance(value, list | tuple):
        return type(value)(_scaled(part, factor) for part in value)
    if isinstance(value, float):
        return value * factor
    return value if value is None else max(1, round(value * factor))
