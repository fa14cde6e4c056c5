"""Checks of a run that is built, before it starts.

Some settings build and fail hours later, at the first validation, or never end: these raise a
`LaunchError`. Others train something else than they say, such as fewer classes: these are warnings.
`check_run` calls all checks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner, TestLoop, ValLoop
from torch import nn

from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.engine.config import as_list, inner_datasets, nearest, type_name
from mmseg_ext.engine.run_record import crops_of
from mmseg_ext.errors import CheckpointError, LaunchError, format_error, join_names
from mmseg_ext.upstream import built_dataloaders

_TO_ZERO = ("CosineAnnealingLR", "PolyLR")  # with eta_min=0, which is their default


def check_run(runner: Runner, trains: bool) -> None:
    """Check a run whose loops are built, and log warnings.

    Raises:
        LaunchError: for a loop that never ends or has no batch, or that has an interval of zero,
            and, if the run `trains`, for scores that no validation computes.
    """
    loops = {"train": runner._train_loop, "val": runner._val_loop, "test": runner._test_loop}
    for stage, loop in loops.items():
        sampler = getattr(getattr(loop, "dataloader", None), "sampler", None)
        reads_to_the_end = isinstance(loop, EpochBasedTrainLoop | ValLoop | TestLoop)
        if reads_to_the_end and isinstance(sampler, InfiniteSampler):
            raise LaunchError(f"{stage}_dataloader.sampler: InfiniteSampler never ends this loop")
        if reads_to_the_end and len(loop.dataloader) == 0:
            dataset: Any = loop.dataloader.dataset
            raise LaunchError(
                f"{stage}_dataloader: its {len(dataset)} images give no batch; "
                "check the folder and the list of images, or set drop_last=False"
            )
    if getattr(runner._train_loop, "val_interval", 1) == 0:
        raise LaunchError(
            "train_cfg.val_interval=0: is not an interval; to train without validation, set "
            "val_cfg, val_dataloader and val_evaluator to None"
        )
    warnings = [*dataset_warnings(runner), *incomplete_splits(runner)]
    if trains:
        from mmseg_ext.segmentors.head_errors import losses_of_ignored_pixels  # needs mmseg

        model = unwrap_model(runner.model)
        warnings += [*losses_of_ignored_pixels(model), *unused_custom_keys(runner.cfg, model)]
        warnings += misfitting_schedules(runner)
    for warning in warnings:
        runner.logger.warning(warning)
    if trains:
        check_metrics(runner)


def missing_images(cfg: Config, split: str, count: int) -> str:
    """Return a line if a split has fewer images than the dataset's `image_counts`, otherwise ''."""
    expected = (cfg.get("image_counts") or {}).get(split, 0)
    if count >= expected:
        return ""
    return (
        f"{split}_dataloader: {split} has {count:,} of {expected:,} images, so scores differ from "
        "those of the dataset; complete it (docs/data.md)"
    )


def incomplete_splits(runner: Runner) -> Iterator[str]:
    """Yield the line of `missing_images` for each split that the Runner has built."""
    loops = {"train": runner._train_loop, "val": runner._val_loop, "test": runner._test_loop}
    for split, loop in loops.items():
        loader = getattr(loop, "dataloader", None)  # not of a config, or None
        if loader is not None:
            count = sum(len(dataset) for dataset in inner_datasets(loader.dataset))
            if line := missing_images(runner.cfg, split, count):
                yield line


def dataset_warnings(runner: Runner) -> list[str]:
    """Return warnings about datasets that do not fit the model, or each other.

    The last decode head must have as many classes as each dataset, and the datasets must agree on
    `reduce_zero_label`. No class should be ignored, and some losses use class weights of any
    number.
    """
    from mmseg_ext.segmentors.head_errors import heads_of, wrong_loss  # needs mmseg

    model = unwrap_model(runner.model)
    head = getattr(model, "decode_head", None)
    if isinstance(head, nn.ModuleList):
        head = head[-1]
    datasets: list[Any] = []
    for loader in built_dataloaders(runner):
        datasets.extend(inner_datasets(loader.dataset))
    class_lists = set()
    for dataset in datasets:
        if classes := getattr(dataset, "metainfo", {}).get("classes"):
            class_lists.add(tuple(classes))
    counts = set(map(len, class_lists))
    warnings = []
    if number := getattr(head, "num_classes", None):
        for count in sorted(counts - {number}):
            line = f"model.decode_head.num_classes={number}, but a dataset has {count} classes"
            warnings.append(line)
    for name, head in heads_of(model):
        if head.ignore_index in range(head.num_classes):
            line = f"model.{name}.ignore_index={head.ignore_index}: this class is not trained"
            warnings.append(line)
        if reason := wrong_loss(head):
            warnings.append(f"model.{name}.{reason}")
    if len(counts) == 1 and len(class_lists) > 1:
        warnings.append("metainfo.classes: the datasets name their classes differently")
    if {True, False} <= {getattr(dataset, "reduce_zero_label", None) for dataset in datasets}:
        warnings.append(
            "reduce_zero_label is True in one dataset and False in another: their labels differ by "
            "one class; set one value for all"
        )
    return warnings


def unused_custom_keys(cfg: Config, model: nn.Module) -> Iterator[str]:
    """Yield a warning for each of `custom_keys` that is in no parameter's name."""
    names, compared = [], []
    for name, _ in model.named_parameters():
        names.append(name)
        # mmengine compares '.name' for a parameter of the model itself.
        compared.append(name if "." in name else f".{name}")
    settings = (cfg.get("optim_wrapper") or {}).get("paramwise_cfg") or {}
    keys = settings.get("custom_keys") or {}
    if not isinstance(keys, Mapping):
        raise LaunchError(
            f"optim_wrapper.paramwise_cfg.custom_keys={keys!r}: set a dict, such as "
            "dict(decode_head=dict(lr_mult=10))"
        )
    for key in keys:
        if not any(key in name for name in compared):
            yield (
                f"optim_wrapper.paramwise_cfg.custom_keys: {key!r} has no effect: no parameter has "
                f"it in its name; use a part of names like {names[0]!r} and {names[-1]!r}"
            )


def misfitting_schedules(runner: Runner) -> Iterator[str]:
    """Yield warnings about learning rates that do not follow the length of the training.

    Nothing else shows them: a schedule of 160,000 iterations that is cut after 1,000 has hardly
    left its warm-up, and after its end at 0 nothing is trained.
    """
    loop, schedules = runner.train_loop, as_list(runner.cfg.get("param_scheduler"))
    schedules = [one for one in schedules if isinstance(one, Mapping) and "type" in one]
    if isinstance(loop, EpochBasedTrainLoop):
        lengths = {True: loop.max_epochs, False: loop.max_iters}  # by `by_epoch`
    elif isinstance(loop, IterBasedTrainLoop):
        lengths = {False: loop.max_iters}
        if any(one.get("by_epoch", True) for one in schedules):
            yield (
                "param_scheduler.by_epoch=True: has no effect in a loop of iterations, which is "
                "one epoch; set by_epoch=False"
            )
    else:
        return
    for by_epoch, length in lengths.items():
        own = [one for one in schedules if one.get("by_epoch", True) == by_epoch]
        own = [one for one in own if isinstance(one.get("end"), int)]  # others never end
        if not own:
            continue
        last = max(own, key=lambda one: one["end"])
        place = f"param_scheduler: {type_name(last)} ends at {last['end']:,} of {length:,}"
        unit = "epochs" if by_epoch else "iterations"
        if last["end"] > 1.1 * length + 2:  # `rescale` rounds short ones up
            hint = "" if by_epoch else f", or use --iterations {length}, which scales schedules"
            yield f"{place} {unit}, so the learning rate is still high at the end; set end{hint}"
        left, ends_at_zero = length - last["end"], type_name(last) in _TO_ZERO
        if left > 0.01 * length and ends_at_zero and not last.get("eta_min"):
            yield f"{place} {unit} at a rate of 0, so the last {left:,} train nothing; set end"


class SameData(Hook):
    """Refuses to test or to resume a checkpoint that was trained with other classes.

    A class that is at another place would be scored as another one. Only names can change. Crops of
    another size are a warning: `train --size` also changes the scale of the images.
    """

    def __init__(self, loop: str):
        self.loop = loop  # test_loop or train_loop

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        meta = checkpoint.get("meta") or {}
        size = tuple(meta.get("crop_size") or ())  # written by `RunRecordHook`
        if size and crops_of(runner.cfg) not in (None, size):
            runner.logger.warning(
                f"crop_size={crops_of(runner.cfg)}: the checkpoint was trained with {size}, so the "
                "images can have another scale; use the config in the folder of its run"
            )
        meta = meta.get("dataset_meta") or {}
        dataset = next(inner_datasets(getattr(runner, self.loop).dataloader.dataset))
        trained, own = list(meta.get("classes") or ()), list(dataset.metainfo.get("classes") or ())
        if not trained or not own or trained == own:
            return
        found = f"was trained with {join_names(trained)}, but the data has {join_names(own)}"
        pairs = zip(trained, own, strict=False)
        is_moved = any(name != other and name in own for name, other in pairs)
        if is_moved or len(trained) != len(own):
            raise CheckpointError(f"the checkpoint {found}; train the new classes")
        runner.logger.warning(f"the checkpoint {found}; only the names should differ")


def check_metrics(runner: Runner) -> None:
    """Raise a LaunchError for `iou_metrics` and `save_best` that the first validation would refuse.

    The metric itself computes the names of its scores. `CheckedIoUMetric` gets the names of scores
    of single classes that `save_best` or the `monitor` of a hook has, such as 'IoU.crop'.
    """
    metrics = getattr(getattr(runner.val_loop, "evaluator", None), "metrics", [])
    for metric in metrics:  # others than IoUMetric and ours do not name their scores
        if not hasattr(metric, "total_area_to_metrics") and not hasattr(metric, "score_names"):
            return
    if not metrics:
        return
    checkpoint_settings = runner.cfg.get("default_hooks", {}).get("checkpoint") or {}
    wanted = as_list(checkpoint_settings.get("save_best"))
    needed: list[Any] = list(wanted)
    for hook in runner.hooks:
        needed.append(getattr(hook, "monitor", None))
    means: set[str] = set()
    of_classes: set[str] = set()
    for metric in metrics:
        prefix = f"{metric.prefix}/" if metric.prefix else ""
        if hasattr(metric, "score_names"):
            if hasattr(metric, "class_index"):
                metric.class_index()  # raises an error for an unknown class
            means.update(prefix + name for name in metric.score_names)
            continue
        # From areas of one pixel the metric computes all names, and `by_class` of the classes.
        areas = 4 * [torch.ones(len(metric.dataset_meta["classes"]))]
        try:
            names = metric.total_area_to_metrics(*areas, metric.metrics)
        except KeyError as error:
            line = f"val_evaluator.iou_metrics={metric.metrics}: {format_error(error)}"
            raise LaunchError(line) from error
        means.update(prefix + (name if name == "aAcc" else f"m{name}") for name in names)
        for name in getattr(metric, "by_class", {}):
            full_name = prefix + name
            of_classes.add(full_name)
            if full_name in needed and name not in metric.class_scores:
                metric.class_scores.append(name)
    known = {"auto"} | means | of_classes
    for name in wanted:
        if name not in known:
            key = f"default_hooks.checkpoint.save_best={name!r}"
            found = ", ".join(sorted(means) + sorted(of_classes, reverse=True)[:4])
            hint = nearest(name, of_classes)
            raise LaunchError(f"{key}: the validation returns {found}{hint}")
