"""Explain in one line why a config cannot be built: key, value and the nearest valid name.

A config is not checked in advance: whatever mmengine builds is accepted. `explained` finds the
part of the config in the traceback of an error, and the setting in its message.
"""

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import mmengine.registry
import torch
from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.registry import Registry
from mmengine.runner import Runner
from torch import nn

from mmseg_ext import errors
from mmseg_ext.datasets.metainfo import inner_datasets
from mmseg_ext.durable.safe_loading import unwrap_model
from mmseg_ext.engine.config import KEYS, arguments, format_error, nearest, short
from mmseg_ext.errors import LaunchError
from mmseg_ext.upstream import built_dataloaders

_WEIGHTS = ("checkpoint", "pretrained", "load_from")  # keys that name files of weights
_UNEXPECTED = re.compile(r"(\w+)[\w.]*\(\) got an unexpected keyword argument '(\w+)'")
# Functions that build a part that is named after a key: `build_optim_wrapper`, `build_norm_layer`.
_BUILDER = re.compile(r"_?(?:build|init|register|set)_(\w+?)(?:_layer|_loop)?")
_ANCESTORS = (object, nn.Module, BaseModule)  # of too many classes to find a part by their methods

_Entries = list[tuple[str, Any]]  # dotted keys of the config, and their values


@contextlib.contextmanager
def explained(cfg: Config, unused: str = "test_") -> Iterator[None]:
    """Explain errors that are raised while parts of `cfg`, or weights that it names, are loaded.

    Args:
        unused: the prefix of keys of parts that are not built.

    Raises:
        LaunchError: in one line, if the error is about a setting, a file or a missing package.
        RuntimeError: for any other error of a part of the config. It names the part, and the error
            is its cause. Errors of this package, and errors outside the config, pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__ == errors.__name__:
            raise
        keys = (key for key in cfg if key in KEYS and not key.startswith(unused))
        entries = [entry for key in keys for entry in _entries(key, cfg[key])]
        explanation = _explanation(cfg, entries, error)
        if explanation is None:
            raise
        raise explanation from error


def dataset_warnings(runner: Runner) -> list[str]:
    """Return warnings about datasets that do not fit the model, or each other.

    The last decode head must have as many classes as each dataset, and the datasets must agree on
    `reduce_zero_label`.
    """
    head = getattr(unwrap_model(runner.model), "decode_head", None)
    number = getattr(head[-1] if isinstance(head, nn.ModuleList) else head, "num_classes", None)
    datasets = [loader.dataset for loader in built_dataloaders(runner)]
    counts = {len(getattr(part, "metainfo", {}).get("classes") or ()) for part in datasets}
    warnings = [
        f"model.decode_head.num_classes={number}, but a dataset has {count} classes"
        for count in sorted(counts - {0, number})
        if number
    ]
    inner = (part for dataset in datasets for part in inner_datasets(dataset))
    if {True, False} <= {getattr(part, "reduce_zero_label", None) for part in inner}:
        warnings.append(
            "reduce_zero_label is True in one dataset and False in another: their labels differ by "
            "one class; set one value for all"
        )
    return warnings


def check_metrics(runner: Runner) -> None:
    """Raise a LaunchError for `iou_metrics` and `save_best` that the first validation would refuse.

    The metric itself computes the names of its scores, for one class.
    """
    metrics = getattr(getattr(runner.val_loop, "evaluator", None), "metrics", [])
    if not metrics or not all(hasattr(metric, "total_area_to_metrics") for metric in metrics):
        return  # not only mmsegmentation's IoUMetric
    names = set()
    for metric in metrics:
        with explained(runner.cfg):
            scores = metric.total_area_to_metrics(*4 * [torch.ones(1)], metric.metrics)
        prefix = f"{metric.prefix}/" if metric.prefix else ""
        names |= {prefix + (name if name == "aAcc" else f"m{name}") for name in scores}
    wanted = (runner.cfg.get("default_hooks", {}).get("checkpoint") or {}).get("save_best")
    for name in [wanted] if isinstance(wanted, str) else wanted or ():
        if name not in {"auto", *names}:
            listed = ", ".join(sorted(names))
            raise LaunchError(
                f"default_hooks.checkpoint.save_best={name!r}: the validation returns {listed}"
                + nearest(name, names)
            )


def _explanation(cfg: Config, entries: _Entries, error: Exception) -> Exception | None:
    """Return the error with the explaining line, or None if `error` is not about the config."""
    trace = traceback.extract_tb(error.__traceback__)
    if any(f.name == "load_checkpoint" and "mmengine" in f.filename for f in trace):
        return _of_weights(entries, error)
    part, reason = _find_part(entries, error.__traceback__), format_error(error)
    training = any(f.name == "run" and f.filename.endswith("loops.py") for f in trace)
    building = isinstance(error, KeyError | TypeError) and not training
    if building and (unknown := _of_type(cfg, entries, part, str(error))):
        return unknown
    if wrong := _UNEXPECTED.search(reason):
        # Training calls own code, too; its bugs are not about the config.
        inside = "optim_wrapper" if training else part
        if argument := _of_argument(entries, inside, wrong[1], wrong[2], error):
            return argument
    if missing := re.search(r"KeyError: '?(inputs|gt_seg_map|gt_sem_seg)\b", f"{reason} {error}"):
        transform = "PackSegInputs" if missing[1] == "inputs" else "LoadAnnotations"
        for key, steps in entries:
            named = key.endswith(".pipeline") and isinstance(steps, list)
            if named and all(step["type"] != transform for step in steps):
                return LaunchError(f"{key} has no type={transform!r}; add it")
    if training or not part:
        return None
    loader = part.split(".")[0]
    if loader.endswith("_dataloader") and cfg[loader].get("dataset") is None:
        part = f"{loader}.dataset"  # the sampler or the loader failed
    line = next(f.line or "" for f in trace[::-1] if "registry" not in Path(f.filename).parts)
    if isinstance(error, AssertionError) and not str(error):
        reason += f" {line}"
    settings = dict(entries)[part]
    named = _named_settings(settings, reason) or _named_settings(settings, line)
    text = f"{part}{named}: {reason} ({Path(trace[-1].filename).name}:{trace[-1].lineno})"
    about_data = part.endswith(".dataset") and isinstance(error, AssertionError)
    known = bool(named) or about_data or isinstance(error, OSError | ImportError)
    return LaunchError(text) if known else RuntimeError(text)


def _find_part(entries: _Entries, trace: TracebackType | None) -> str:
    """Return the innermost key whose part runs in the traceback, or ''.

    A frame runs a part if it is a method of the part's class, or the function that builds it.
    """
    owners: dict[CodeType, list[str]] = {}
    for key, value in entries:
        kind = _class_named(value.get("type")) if isinstance(value, Mapping) else None
        for parent in {*getattr(kind, "__mro__", ())} - {*_ANCESTORS}:
            for method in vars(parent).values():
                function = getattr(method, "__func__", method)  # of a static or class method
                if hasattr(function, "__code__"):
                    owners.setdefault(function.__code__, []).append(key)
    part = ""
    for frame, _ in traceback.walk_tb(trace):
        keys = owners.get(frame.f_code, [])
        if built := _BUILDER.fullmatch(frame.f_code.co_name):
            named = re.compile(rf"(.+\.|)(\w+_)?{built[1]}(_cfg)?")
            keys = [key for key, _ in entries if named.fullmatch(key) and (part or "." not in key)]
        within = [key for key in keys if _is_within(key, part)]
        if within and all(key.startswith(within[0]) for key in within):
            part = within[0]
    return part


def _is_within(key: str, part: str) -> bool:
    """Return whether the key is inside `part`; a loop also builds the data of its stage."""
    stage = part.split("_")[0] if "." not in part else None
    return not part or key.startswith((f"{part}.", f"{stage}_")) or key == part


def _of_type(cfg: Config, entries: _Entries, part: str, message: str) -> LaunchError | None:
    """Explain a type that is not registered, which can be due to a wrong `default_scope`.

    Some messages have None instead of the type.
    """
    scope, scopes = cfg.get("default_scope", "mmengine"), {r.scope for r in _registries()}
    if scope not in scopes:
        near = nearest(scope, scopes)
        return LaunchError(f"default_scope={scope!r}: no installed package has this scope{near}")
    types = [e for e in entries if re.search(r"(^runner_|\.)type$", e[0]) and isinstance(e[1], str)]
    for key, kind in types:
        meant = f"{kind} is not in" in message or (part and _is_within(key, part))
        if meant and _class_named(kind) is None:
            names = {name for registry in _registries() for name in registry.module_dict}
            return LaunchError(f"{key}={kind!r}: not registered{nearest(kind, names)}")
    return None


def _registries() -> list[Registry]:
    roots = [r for r in vars(mmengine.registry).values() if isinstance(r, Registry)]
    return [registry for root in roots for registry in (root, *root.children.values())]


def _class_named(kind: object) -> Callable | None:
    """Return the class or function that is registered by this name, with or without a scope."""
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    name = kind.rpartition(".")[2]
    return next((r.module_dict[name] for r in _registries() if name in r.module_dict), None)


def _of_argument(
    entries: _Entries, part: str, function: str, name: str, error: Exception
) -> LaunchError | None:
    """Explain an argument that the config sets, but a class or function does not have."""
    keys = [key for key, _ in entries if key.rpartition(".")[2] == name and _is_within(key, part)]
    if not keys:
        return None
    settings, owner = dict(entries), keys[0].rpartition(".")[0]
    kind = _class_named((settings.get(owner) or {}).get("type"))
    if kind is None:  # of torch or mmengine, and in the globals of its caller
        *_, (caller, _) = traceback.walk_tb(error.__traceback__)
        kind = caller.f_globals.get(function)
    known = getattr(kind, "__name__", None)
    # Heads of mmsegmentation have an empty base if mmdetection cannot be imported.
    if getattr(inspect.getmodule(kind), f"MMDET_{known}", None) is BaseModule:
        remedy = "run: pip install -e '.[mm,det]'"
        if find_spec("mmdet"):
            remedy = "add 'mmseg_ext.detection.operators_in_pytorch' to custom_imports"
        return LaunchError(f"{owner}.type={known!r}: mmdetection cannot be imported; {remedy}")
    near = nearest(name, arguments(kind))
    return LaunchError(f"{keys[0]}={short(repr(settings[keys[0]]))}: {format_error(error)}{near}")


def _of_weights(entries: _Entries, error: Exception) -> LaunchError | None:
    """Explain that a file of weights cannot be read; the error may not name it."""
    named = [(k, v) for k, v in entries if k.endswith(_WEIGHTS) and isinstance(v, str)]
    named = [e for e in named if e[1] in str(error)] or [e for e in named if "://" in e[1]]
    if not named:
        return None
    key, name = named[0]
    remedy = "name a local file"
    if key.startswith("model."):  # `pretrained`, or `checkpoint` of an `init_cfg`
        entry = re.sub(r"(\.\d+)?\.checkpoint$", "", key)
        remedy += f" with --cfg-options {key}=FILE, or train from scratch with {entry}=None"
    return LaunchError(f"{key}={name!r} cannot be loaded ({format_error(error)}); {remedy}")


def _named_settings(settings: object, text: str) -> str:
    """Return '.name=value, ...' of the settings whose name, or else value, is in the text."""
    if not isinstance(settings, Mapping | list):
        return f"={settings!r}"
    words = {word.lstrip("_") for word in re.findall(r"-?[\w.]*\w", text)}
    named = [(k, v) for k, v in _entries("", settings) if k in words and k != "type"]
    for key, value in () if named else _entries("", settings):
        if isinstance(value, str | float) and str(value) in words and not key.endswith("type"):
            named.append((key, value))
    shown = ", ".join(f"{name}={short(repr(value))}" for name, value in named[:3])
    return f".{shown}" if shown else ""


def _entries(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of a setting and of all inside it, the outer ones first."""
    yield key, value
    inside = value.items() if isinstance(value, Mapping) else ()
    inside = enumerate(value) if isinstance(value, list | tuple) else inside
    for name, child in inside:
        yield from _entries(f"{key}.{name}" if key else str(name), child)
