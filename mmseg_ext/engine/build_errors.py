"""Explain in one line why a config cannot be built: key, value and the nearest valid name.

A config is not checked in advance: whatever mmengine builds is accepted. `explained` finds the
part of the config in the traceback of an error, and the setting in its message.
"""

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import mmengine.registry
import torch
from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.registry import Registry
from mmengine.runner import Runner
from torch import nn

from mmseg_ext import errors
from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.engine.config import KEYS, arguments, format_error, inner_datasets, nearest, short
from mmseg_ext.errors import LaunchError, RunError
from mmseg_ext.upstream import built_dataloaders

_WEIGHTS = ("checkpoint", "pretrained", "load_from")  # keys that name files of weights
_ANCESTORS = (object, nn.Module, BaseModule)  # of too many classes to find a part by their methods

# Of BaseDecodeHead; some heads inherit from it without calling its constructor.
_OF_HEADS = ("ignore_index", "loss_decode", "num_classes", "out_channels")

_Entries = list[tuple[str, Any]]  # dotted keys of the config, and their values


@contextlib.contextmanager
def explained(cfg: Config, model: nn.Module | None = None) -> Iterator[None]:
    """Explain errors that are raised while parts of `cfg`, or weights that it names, are loaded.

    With a `model`, also explain errors of training steps that its decode heads cause.

    Raises:
        LaunchError: in one line, if the error is about a setting, a file or a missing package.
        RunError: for classes of a label map, which only one process may have.
        RuntimeError: for any other error of a part of the config. It names the part, and the error
            is its cause. Errors of this package, and errors outside the config, pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__ == errors.__name__:
            raise
        explanation = _explanation(_all_entries(cfg), error)
        if explanation is None and model is not None:
            explanation = _of_heads(unwrap_model(model), error)
        if explanation is None:
            raise
        raise explanation from error


@contextlib.contextmanager
def explained_without_data(cfg: Config) -> Iterator[None]:
    """Explain errors of a model that runs on tensors without data, as for its cost.

    Raises:
        LaunchError: for any error. It names the innermost part of `cfg` that runs.
    """
    try:
        yield
    except LaunchError:
        raise
    except Exception as error:  # of any kind: a part reads data, or needs a GPU's operator
        part = _find_part(_all_entries(cfg), error.__traceback__) or "the model"
        raise LaunchError(
            f"{cfg.filename}: {part} does not run without data and a GPU ({format_error(error)}); "
            "measure it in a training"
        ) from error


def _all_entries(cfg: Config) -> _Entries:
    return [entry for key in cfg if key in KEYS for entry in _entries(key, cfg[key])]


def dataset_warnings(runner: Runner) -> list[str]:
    """Return warnings about datasets that do not fit the model, or each other.

    The last decode head must have as many classes as each dataset, and the datasets must agree on
    `reduce_zero_label`. No class should be ignored, and some losses use class weights of any
    number.
    """
    from mmseg_ext.segmentors.loss_errors import wrong_class_weights  # `env` works without mmseg

    model = unwrap_model(runner.model)
    head = getattr(model, "decode_head", None)
    number = getattr(head[-1] if isinstance(head, nn.ModuleList) else head, "num_classes", None)
    datasets = [d for loader in built_dataloaders(runner) for d in inner_datasets(loader.dataset)]
    names = [tuple(getattr(part, "metainfo", {}).get("classes") or ()) for part in datasets]
    counts = {*map(len, names)}
    warnings = [
        f"model.decode_head.num_classes={number}, but a dataset has {count} classes"
        for count in sorted(counts - {0, number})
        if number
    ]
    parts: list[tuple[str, Any]] = [*model.named_modules()]
    for name, part in parts:
        if not all(hasattr(part, attribute) for attribute in _OF_HEADS):
            continue
        if part.ignore_index in range(part.num_classes):
            text = f"model.{name}.ignore_index={part.ignore_index}: this class is not trained"
            warnings.append(text)
        if reason := wrong_class_weights(part):
            warnings.append(f"model.{name}.{reason}")
    if len(counts - {0}) == 1 and len({*names} - {()}) > 1:
        warnings.append("metainfo.classes: the datasets name their classes differently")
    if {True, False} <= {getattr(part, "reduce_zero_label", None) for part in datasets}:
        warnings.append(
            "reduce_zero_label is True in one dataset and False in another: their labels differ by "
            "one class; set one value for all"
        )
    return warnings


def check_metrics(runner: Runner) -> None:
    """Raise a LaunchError for `iou_metrics` and `save_best` that the first validation would refuse.

    The metric itself computes the names of its scores. `CheckedIoUMetric` gets the names of scores
    of single classes that `save_best` or the `monitor` of a hook has, such as 'IoU.crop'.
    """
    metrics = getattr(getattr(runner.val_loop, "evaluator", None), "metrics", [])
    if not metrics or not all(hasattr(metric, "total_area_to_metrics") for metric in metrics):
        return  # not only mmsegmentation's IoUMetric
    wanted = (runner.cfg.get("default_hooks", {}).get("checkpoint") or {}).get("save_best")
    wanted = [wanted] if isinstance(wanted, str) else wanted or []
    needed = [*wanted, *(getattr(hook, "monitor", None) for hook in runner.hooks)]
    names, of_classes = set(), set()
    for metric in metrics:
        areas = 4 * [torch.ones(len(metric.dataset_meta["classes"]))]
        try:
            scores = metric.total_area_to_metrics(*areas, metric.metrics)
        except KeyError as error:
            line = f"val_evaluator.iou_metrics={metric.metrics}: {format_error(error)}"
            raise LaunchError(line) from error
        prefix = f"{metric.prefix}/" if metric.prefix else ""
        names |= {prefix + (name if name == "aAcc" else f"m{name}") for name in scores}
        for name in getattr(metric, "by_class", {}):
            of_classes.add(prefix + name)
            if prefix + name in needed and name not in metric.class_scores:
                metric.class_scores.append(name)
    for name in wanted:
        if name not in {"auto", *names, *of_classes}:
            key, hint = f"default_hooks.checkpoint.save_best={name!r}", nearest(name, of_classes)
            found = ", ".join([*sorted(names), *sorted(of_classes, reverse=True)[:4]])
            raise LaunchError(f"{key}: the validation returns {found}{hint}")


@dataclass
class _Failure:
    """An error, and the part of the config that raises it."""

    error: Exception
    frames: traceback.StackSummary
    reason: str  # 'KeyError: ...'
    part: str  # the key that `_find_part` returns
    entries: _Entries  # of the config, those of the part first

    def runs(self, function: str, package: str = "") -> bool:
        return any(f.name == function and package in f.filename for f in self.frames)


def _explanation(entries: _Entries, error: Exception) -> Exception | None:
    """Return the error with the explaining line, or None if `error` is not about the config."""
    part = _find_part(entries, error.__traceback__)
    own_first = sorted(entries, key=lambda entry: not _is_within(entry[0], part))
    frames = traceback.extract_tb(error.__traceback__)
    failure = _Failure(error, frames, format_error(error), part, own_first)
    if failure.runs("load_checkpoint", "mmengine"):
        return _of_weights(entries, error)
    kinds = (_of_constructor, _of_type, _of_argument, _of_step, _of_pipeline, _of_part)
    return next(filter(None, (explain(failure) for explain in kinds)), None)


def _of_constructor(failure: _Failure) -> LaunchError | None:
    """Explain mmsegmentation's constructor for layer-wise rates, whose error has no text."""
    unfit = isinstance(failure.error, NotImplementedError)
    if not unfit or "layer_decay_opt" not in failure.frames[-1].filename:
        return None
    return LaunchError(
        "optim_wrapper.constructor: mmsegmentation's is for ConvNeXt, BEiT and MAE; use "
        "LayerDecayOptimWrapperConstructor with paramwise_cfg.layer_decay_rate"
    )


def _of_step(failure: _Failure) -> Exception | None:
    """Explain what a training step demands of the compiler and of the batch."""
    if failure.runs("_maybe_compile"):
        return LaunchError(f"compile={dict(failure.entries)['compile']!r}: {failure.reason}")
    if "Expected more than 1 value per channel" not in failure.reason:
        return None
    return RunError(  # in one process, or all
        f"train_dataloader.batch_size: {failure.reason}; use two or more images in each batch "
        "(drop_last=True leaves out a smaller last one), or another norm_cfg"
    )


def _of_pipeline(failure: _Failure) -> LaunchError | None:
    """Explain a pipeline that does not load the labels, or does not pack its results."""
    # A worker's error contains the text of its traceback.
    trace = "".join(traceback.format_tb(failure.error.__traceback__))
    stack = f"{failure.reason} {trace} {failure.error}"
    missing = re.search(r"KeyError: '?(inputs|gt_s\w+)\b|in (pseudo|default)_collate", stack)
    if not missing:
        return None
    entries, loads = failure.entries, (missing[1] or "").startswith("gt")
    packs = [v for k, v in entries if k.endswith(".type") and str(v).startswith("Pack")]
    transform = "LoadAnnotations" if loads else (packs or ["PackSegInputs"])[0]
    kind = "LoadAnnotations" if loads else "Pack"  # detection has PackDetInputs
    for key, steps in entries:
        named = key.endswith(".pipeline") and isinstance(steps, list)
        if named and not any(kind in str(step["type"]) for step in steps):
            return LaunchError(f"{key} has no type={transform!r}; add it")
    return None


def _of_part(failure: _Failure) -> Exception | None:
    """Name the part, and its settings that the error or its line of code names."""
    error, frames, part, reason = failure.error, failure.frames, failure.part, failure.reason
    training = any(f.name == "run" and f.filename.endswith("loops.py") for f in frames[:-1])
    if training or not part:
        return None
    line = next(f.line or "" for f in frames[::-1] if "registry" not in Path(f.filename).parts)
    if isinstance(error, AssertionError) and not str(error):
        reason += f" {line}"
    entries = failure.entries
    named = _named_settings(entries, part, reason) or _named_settings(entries, part, line)
    text = f"{named or part}: {reason} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    # Other errors without a setting can be bugs of the part: these keep their traceback.
    checked = isinstance(error, AssertionError | ImportError | OSError | ValueError)
    checked |= isinstance(error, TypeError) and "required positional argument" in reason
    return LaunchError(text) if named or checked else RuntimeError(text)


def _find_part(entries: _Entries, trace: TracebackType | None) -> str:
    """Return the innermost key with a class whose method runs in the traceback, or ''."""
    codes = []
    for key, value in entries:
        kind = _class_named(value.get("type")) if isinstance(value, Mapping) else None
        for parent in {*getattr(kind, "__mro__", ())} - {*_ANCESTORS}:
            functions = (getattr(f, "__func__", f) for f in vars(parent).values())  # of methods
            codes += [(key, f.__code__) for f in functions if hasattr(f, "__code__")]
    part = ""
    for frame, _ in traceback.walk_tb(trace):
        keys = [key for key, code in codes if code is frame.f_code and _is_within(key, part)]
        if keys and all(key.startswith(keys[0]) for key in keys):
            part = keys[0]
    return part


def _is_within(key: str, part: str) -> bool:
    """Return whether the key is inside `part`; a loop also builds the data of its stage."""
    stage = part.removesuffix("cfg") if part.endswith("_cfg") and "." not in part else None
    return not part or f"{key}.".startswith(f"{part}.") or bool(stage and key.startswith(stage))


def _of_type(failure: _Failure) -> LaunchError | None:
    """Explain a type that is not registered; some messages have None instead of the type."""
    entries, reason = failure.entries, failure.reason
    if not isinstance(failure.error, KeyError | TypeError):
        return None
    if 'must contain the key "type"' in reason:
        without = [k for k, v in entries if isinstance(v, Mapping) and str(v) in reason]
        return LaunchError(f"{without[0]}: has no type") if without else None
    for key, kind in entries:
        named = isinstance(kind, str) and re.search(rf"\b(None|{re.escape(kind)})\b", reason)
        if named and re.search(r"(^runner_|\.)type$", key) and _class_named(kind) is None:
            names = {name for registry in registries() for name in registry.module_dict}
            return LaunchError(f"{key}={kind!r}: not registered{nearest(kind, names)}")
    return None


def registries() -> list[Registry]:
    """Return mmengine's registries and their children."""
    roots = [r for r in vars(mmengine.registry).values() if isinstance(r, Registry)]
    return [registry for root in roots for registry in (root, *root.children.values())]


def _class_named(kind: object) -> Callable | None:
    """Return the class or function that is registered by this name, with or without a scope."""
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    name = kind.rpartition(".")[2]
    return next((r.module_dict[name] for r in registries() if name in r.module_dict), None)


def _of_argument(failure: _Failure) -> LaunchError | None:
    """Explain an argument that the config sets, but a class or function does not have."""
    unexpected = r"(\w+)[\w.]*\(\) got an unexpected keyword argument '(\w+)'"
    if not (wrong := re.search(unexpected, failure.reason)):
        return None
    function, name = wrong.groups()
    *_, (caller, _) = traceback.walk_tb(failure.error.__traceback__)
    settings = dict(failure.entries)
    for key, value in failure.entries:
        owner, _, own_name = key.rpartition(".")
        if own_name == name and owner:
            kind = _class_named(settings[owner].get("type")) or caller.f_globals.get(function)
            if name not in (known := arguments(kind)):
                line = f"{key}={short(repr(value))}: {failure.reason}"
                return LaunchError(line + nearest(name, known))
    return None


def _of_heads(model: nn.Module, error: Exception) -> Exception | None:
    """Explain labels that a decode head has no class for, and losses that fail for any labels."""
    from mmseg.models.decode_heads import DAHead  # `env` works without mmseg
    from mmseg.models.decode_heads.decode_head import BaseDecodeHead

    from mmseg_ext.segmentors.loss_errors import failing_loss

    label = re.search(r"Target (\d+) is out of bounds", str(error))  # torch, on a CPU
    parts: list[tuple[str, Any]] = [*model.named_modules()]
    for name, head in parts:
        if not all(hasattr(head, attribute) for attribute in _OF_HEADS):
            continue
        if label and int(label[1]) >= head.num_classes:
            key = f"model.{name}.num_classes={head.num_classes}"
            hint = "set their number, or find the files with `mmseg-ext check_dataset CONFIG`"
            return RunError(f"{key}: the labels have the value {label[1]}; {hint}")
        # Other heads may call their losses with other arguments.
        usual = type(head).loss_by_feat in (BaseDecodeHead.loss_by_feat, DAHead.loss_by_feat)
        found = failing_loss(head, error) if usual or hasattr(head, "named_logits") else None
        if found is not None:
            reason = f"{found.text} ({format_error(found.error)})"
            hint = "correct its settings, or use another loss"
            return LaunchError(f"model.{name}.{reason}; {hint}")
    return None


def _of_weights(entries: _Entries, error: Exception) -> LaunchError | None:
    """Explain that a file of weights cannot be read; the error may not name it."""
    named = [(k, v) for k, v in entries if k.endswith(_WEIGHTS) and isinstance(v, str)]
    # A file of another model, a ValueError, was not downloaded.
    urls = [e for e in named if "://" in e[1] and not isinstance(error, ValueError)]
    named = [e for e in named if e[1] in str(error)] or urls
    if not named:
        return None
    key, name = named[0]
    return LaunchError(
        f"{key}={name!r} cannot be loaded ({format_error(error)}); name a local file with "
        f"--cfg-options {key}=FILE, or use none with {key.removesuffix('.checkpoint')}=None"
    )


def _named_settings(entries: _Entries, part: str, text: str) -> str:
    """Return 'key=value, ...' of settings that `text` names, of the part or of a loop's data."""
    words = {word.lstrip("_") for word in re.findall(r"\w+", text)} - {"type"}
    parents = {part, re.sub("^(train|val|test)_cfg$", r"\1_dataloader", part)}
    own = [(key, value, *key.rpartition(".")[::2]) for key, value in entries]
    named = [f"{k}={short(repr(v))}" for k, v, owner, n in own if owner in parents and n in words]
    return ", ".join(named[:3])


def _entries(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of a setting and of all inside it, the outer ones first."""
    yield key, value
    inside = value.items() if isinstance(value, Mapping) else ()
    inside = enumerate(value) if isinstance(value, list | tuple) else inside
    for name, child in inside:
        yield from _entries(f"{key}.{name}", child)
