"""Explain in one line why a config cannot be built: key, value and the nearest valid name.

A config is not checked in advance: whatever mmengine builds is accepted. Only after an error,
`explained` looks for its cause in the config. The methods in the traceback tell the part: `EAHead.
__init__` runs for `model.decode_head`. The words of the message name the setting in this part. Each
function `_of_...` explains one kind of error, or returns None. Settings of a decode head that do
not fit its features or labels are explained by `mmseg_ext.segmentors.head_errors`.
"""

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import mmengine.registry
from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.registry import Registry
from torch import nn

from mmseg_ext import errors
from mmseg_ext.checkpoint.safe_loading import unwrap_model
from mmseg_ext.engine.config import (
    KEYS,
    arguments,
    as_list,
    dropped_imports,
    nearest,
    settings_inside,
)
from mmseg_ext.errors import LaunchError, RunError, format_error, short

_WEIGHTS = ("checkpoint", "pretrained", "load_from")  # keys that name files of weights
_ANCESTORS = (object, nn.Module, BaseModule)  # of too many classes to find a part by their methods

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
        explanation = _explanation(_all_entries(cfg), error, cfg.filename)
        if explanation is None and model is not None:
            from mmseg_ext.segmentors.head_errors import explain_training_error  # needs mmseg

            explanation = explain_training_error(unwrap_model(model), error)
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
    entries: _Entries = []
    for key in cfg:
        if key in KEYS:
            entries.extend(settings_inside(key, cfg[key]))
    return entries


@dataclass
class _Failure:
    """An error, and the part of the config that raises it."""

    error: Exception
    frames: traceback.StackSummary
    reason: str  # 'KeyError: ...'
    part: str  # the key that `_find_part` returns
    entries: _Entries  # of the config, those of the part first
    config: str | None  # its file

    def runs(self, function: str, package: str = "") -> bool:
        return any(f.name == function and package in f.filename for f in self.frames)


def _explanation(entries: _Entries, error: Exception, config: str | None) -> Exception | None:
    """Return the error with the explaining line, or None if `error` is not about the config."""
    part = _find_part(entries, error.__traceback__)
    own_first = sorted(entries, key=lambda entry: not _is_within(entry[0], part))
    frames = traceback.extract_tb(error.__traceback__)
    failure = _Failure(error, frames, format_error(error), part, own_first, config)
    if failure.runs("load_checkpoint", "mmengine"):
        return _of_weights(entries, error)
    kinds = (_of_constructor, _of_type, _of_argument, _of_empty_data, _of_step, _of_pipeline)
    for explain in (*kinds, _of_part):
        explanation = explain(failure)
        if explanation is not None:
            return explanation
    return None


def _of_constructor(failure: _Failure) -> LaunchError | None:
    """Explain mmsegmentation's constructor for layer-wise rates, whose error has no text."""
    unfit = isinstance(failure.error, NotImplementedError)
    if not unfit or "layer_decay_opt" not in failure.frames[-1].filename:
        return None
    return LaunchError(
        "optim_wrapper.constructor: mmsegmentation's is for ConvNeXt, BEiT and MAE; set the rates "
        "with paramwise_cfg.custom_keys"
    )


def _of_step(failure: _Failure) -> Exception | None:
    """Explain what a training step demands of the compiler and of the batch."""
    for key, method in (("compile", "compile_loss"), ("compile_blocks", "compile_blocks")):
        if failure.runs(method):
            return LaunchError(f"{key}={dict(failure.entries)[key]!r}: {failure.reason}")
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
    # "KeyError: 'gt_seg_map'", "KeyError: 'inputs'", "line 9, in pseudo_collate"
    missing = re.search(r"KeyError: '?(inputs|gt_s\w+)\b|in (pseudo|default)_collate", stack)
    if missing is None:
        return None
    if (missing[1] or "").startswith("gt"):
        transform = kind = "LoadAnnotations"
    else:  # as the config's other pipelines; detection has PackDetInputs
        used = (v for k, v in failure.entries if k.endswith(".type") and str(v).startswith("Pack"))
        transform, kind = next(used, "PackSegInputs"), "Pack"
    for key, steps in failure.entries:
        if not key.endswith(".pipeline") or not isinstance(steps, list):
            continue
        if not any(kind in str(step["type"]) for step in steps):
            return LaunchError(f"{key} has no type={transform!r}; add it")
    return None


def _of_part(failure: _Failure) -> Exception | None:
    """Name the part, and its settings that the error or its line of code names."""
    error, frames, part, reason = failure.error, failure.frames, failure.part, failure.reason
    training = any(f.name == "run" and f.filename.endswith("loops.py") for f in frames[:-1])
    if training or not part:
        return None
    # The line of code that failed, without mmengine's registry around it.
    own = [frame for frame in frames if "registry" not in Path(frame.filename).parts]
    line = (own[-1].line or "") if own else ""
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
    methods = _methods_of_parts(entries)
    part = ""
    for frame, _ in traceback.walk_tb(trace):
        keys = []
        for key, code in methods:
            if code is frame.f_code and _is_within(key, part):
                keys.append(key)
        # Keys next to each other have the same class, and the frame does not tell which one runs.
        if keys and all(key.startswith(keys[0]) for key in keys):
            part = keys[0]
    return part


def _methods_of_parts(entries: _Entries) -> list[tuple[str, CodeType]]:
    """Return the code of each method of the classes in the config, with the key of the class."""
    methods = []
    for key, value in entries:
        if not isinstance(value, Mapping):
            continue
        kind = class_named(value.get("type"))
        for parent in getattr(kind, "__mro__", ()):
            if parent in _ANCESTORS:
                continue
            for attribute in vars(parent).values():
                function = getattr(attribute, "__func__", attribute)  # of a class method
                if hasattr(function, "__code__"):
                    methods.append((key, function.__code__))
    return methods


def _is_within(key: str, part: str) -> bool:
    """Return whether the key is inside `part`; a loop also builds the data of its stage."""
    if not part or f"{key}.".startswith(f"{part}."):
        return True
    is_loop = part.endswith("_cfg") and "." not in part
    stage = part.removesuffix("cfg")  # 'train_', of train_cfg and train_dataloader
    return is_loop and key.startswith(stage)


def _of_type(failure: _Failure) -> LaunchError | None:
    """Explain a type that is not registered; some messages have None instead of the type."""
    reason = failure.reason
    if not isinstance(failure.error, KeyError | TypeError):
        return None
    if 'must contain the key "type"' in reason:
        for key, value in failure.entries:
            if isinstance(value, Mapping) and str(value) in reason:
                return LaunchError(f"{key}: has no type")
        return None
    for key, kind in failure.entries:
        is_type = re.search(r"(^runner_|\.)type$", key)  # 'runner_type', 'model.backbone.type'
        if not is_type or not isinstance(kind, str):
            continue
        named = re.search(rf"\b(None|{re.escape(kind)})\b", reason)  # 'EAHeda is not in the ...'
        if named and class_named(kind) is None:
            hint = nearest(kind, [name for name, _ in registered()])
            is_file = Path(failure.config or "").is_file()  # else the config is made in Python
            if is_file and (dropped := dropped_imports(str(failure.config))):
                own = dict(failure.entries)["custom_imports.imports"]
                imports = [*as_list(own), *dropped]
                hint = f"; custom_imports.imports={own!r} replaces the base's list; set {imports=}"
            return LaunchError(f"{key}={kind!r}: not registered{hint}")
    return None


def registered() -> Iterator[tuple[str, Callable]]:
    """Yield the names and classes in mmengine's registries and their children."""
    for root in vars(mmengine.registry).values():
        if isinstance(root, Registry):
            for registry in (root, *root.children.values()):
                yield from registry.module_dict.items()


def class_named(kind: object) -> Callable | None:
    """Return the class or function that is registered by this name, with or without a scope."""
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    wanted = kind.rpartition(".")[2]
    for name, found in registered():
        if name == wanted:
            return found
    return None


def _of_argument(failure: _Failure) -> LaunchError | None:
    """Explain an argument that the config sets, but a class or function does not have."""
    # "EAHead.__init__() got an unexpected keyword argument 'memory'"
    unexpected = r"(\w+)[\w.]*\(\) got an unexpected keyword argument '(\w+)'"
    wrong = re.search(unexpected, failure.reason)
    if wrong is None:
        return None
    function, argument = wrong.groups()
    caller, _ = list(traceback.walk_tb(failure.error.__traceback__))[-1]
    settings = dict(failure.entries)
    for key, value in failure.entries:
        owner, _, name = key.rpartition(".")
        if name != argument or not owner:
            continue
        kind = class_named(settings[owner].get("type")) or caller.f_globals.get(function)
        known = arguments(kind)
        if name not in known:
            line = f"{key}={short(repr(value))}: {failure.reason}"
            return LaunchError(line + nearest(name, known))
    return None


def _of_empty_data(failure: _Failure) -> LaunchError | None:
    """Explain that a dataset of mmengine finds no image, which it concatenates to nothing."""
    is_empty = "at least one array" in failure.reason
    if not is_empty or not failure.runs("_serialize_data", "mmengine"):
        return None
    names = "data_root data_prefix img_suffix ann_file indices"
    found = _named_settings(failure.entries, failure.part, names, most=5)
    part = failure.part or f"{failure.config}: a dataset"
    return LaunchError(f"{part}: has no images ({found}); set where they are")


def _of_weights(entries: _Entries, error: Exception) -> LaunchError | None:
    """Explain that a file of weights cannot be read; the error may not name it."""
    named, addresses = [], []
    for key, value in entries:
        if not key.endswith(_WEIGHTS) or not isinstance(value, str):
            continue
        if value in str(error):
            named.append((key, value))
        elif "://" in value and not isinstance(error, ValueError):  # raised by a file that is read
            addresses.append((key, value))
    if not named and not addresses:
        return None
    key, file = (named or addresses)[0]
    return LaunchError(
        f"{key}={file!r} cannot be loaded ({format_error(error)}); name a local file with "
        f"--cfg-options {key}=FILE, or use none with {key.removesuffix('.checkpoint')}=None"
    )


def _named_settings(entries: _Entries, part: str, text: str, most: int = 3) -> str:
    """Return 'key=value, ...' of settings that `text` names, of the part or of a loop's data."""
    words = {word.lstrip("_") for word in re.findall(r"\w+", text)} - {"type"}
    # The datasets of train_cfg are in train_dataloader.
    parents = {part, re.sub("^(train|val|test)_cfg$", r"\1_dataloader", part)}
    named = []
    for key, value in entries:
        owner, _, name = key.rpartition(".")
        if owner in parents and name in words:
            named.append(f"{key}={short(repr(value))}")
    return ", ".join(named[:most])
