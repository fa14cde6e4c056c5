"""Explain in one line why a config cannot be built: key, value and the nearest valid name.

A config is not checked in advance: whatever mmengine builds is accepted. While mmengine builds,
`explained` records the settings of the parts that fail, and finds them in the config.
`unread_options` and `dataset_warnings` compare what nothing else compares; they only warn.
"""

import contextlib
import difflib
import functools
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.registry import MODELS, Registry
from mmengine.runner import EpochBasedTrainLoop, LogProcessor, Runner, TestLoop, ValLoop
from torch import nn
from torch.utils.data import DataLoader

from mmseg_ext import errors
from mmseg_ext.checkpoint.loading import unwrap_model
from mmseg_ext.datasets.wrappers import inner_datasets
from mmseg_ext.errors import LaunchError
from mmseg_ext.upstream import built_dataloaders

# The Runner's arguments, and other keys that mmengine and the commands read.
_KEYS = {*inspect.signature(Runner).parameters, "activation_checkpointing", "compile"}
_KEYS |= {"custom_imports", "efficient_conv_bn_eval", "find_unused_parameters"}
_KEYS |= {"min_backbone_share", "model_wrapper_cfg", "runner_type", "sync_bn"}
_KEYS |= {"tta_model", "tta_pipeline"}
# Methods of the Runner that build without a registry, and the functions that they call.
_METHODS: dict[str, Callable] = {
    "set_randomness": Runner.set_randomness,
    "build_dataloader": DataLoader,
    "build_log_processor": LogProcessor,
    "register_hook": Runner.register_hook,
    "build_train_loop": EpochBasedTrainLoop,
    "build_val_loop": ValLoop,
    "build_test_loop": TestLoop,
}
_WEIGHTS = ("checkpoint", "pretrained", "load_from")  # keys that name files of weights
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


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
    with _recorded_failures() as failures:
        try:
            yield
        except Exception as error:
            if type(error).__module__ == errors.__name__:
                raise
            keys = (key for key in cfg if key in _KEYS and not key.startswith(unused))
            entries = [entry for key in keys for entry in _entries(key, cfg[key])]
            explanation = _explanation(cfg, entries, failures, error)
            if explanation is None:
                raise
            raise explanation from error


def format_error(error: BaseException) -> str:
    """Return 'KeyError: ...' without line breaks, cut after 300 characters."""
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    return _short(" ".join(f"{type(error).__name__}: {message}".split()), 300)


def unread_options(cfg: Config, options: Iterable[str]) -> list[str]:
    """Return a warning for each key of `--cfg-options` that nothing but a hook can read.

    `cfg` is the config before the options are merged.
    """
    return [
        f"--cfg-options: {key!r} has no effect: it is not used after loading"
        + ("" if key in cfg else _nearest(key, _KEYS))
        for key in sorted({option.split(".")[0] for option in options} - _KEYS)
    ]


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


class _Failures(NamedTuple):
    """The calls that the last error left, the innermost first, and the types that were unknown."""

    calls: list[tuple[Registry | Callable, object]]  # what failed, and its settings
    unknown: list[tuple[Registry, str]]


@contextlib.contextmanager
def _recorded_failures() -> Iterator[_Failures]:
    """Record failing calls of all registries and of the Runner's methods while the block runs."""
    failures, get = _Failures([], []), Registry.get

    def recorded(function: Callable, called: Callable | None = None) -> Callable:
        @functools.wraps(function)
        def call(*args, **kwargs):
            failures.calls.clear()
            failures.unknown.clear()
            try:
                return function(*args, **kwargs)
            except Exception:
                settings = next((a for a in args if not isinstance(a, Registry | Runner)), kwargs)
                failures.calls.append((called or args[0], settings))
                raise

        return call

    def recorded_get(registry: Registry, key: str):
        found = get(registry, key)
        if found is None:
            failures.unknown[:] = [(registry, key)]
        return found

    methods = {name: recorded(getattr(Runner, name), made) for name, made in _METHODS.items()}
    methods["build_dataloader"] = staticmethod(methods["build_dataloader"])
    with (
        mock.patch.multiple(Registry, get=recorded_get, build=recorded(Registry.build)),
        mock.patch.multiple(Runner, **methods),
    ):
        yield failures


_Entries = list[tuple[str, object]]  # dotted keys of the config, and their values


def _explanation(
    cfg: Config, entries: _Entries, failures: _Failures, error: Exception
) -> Exception | None:
    """Return the error with the explaining line, or None if `error` is not about the config."""
    trace = traceback.extract_tb(error.__traceback__)
    if any(f.name == "load_checkpoint" and "mmengine" in f.filename for f in trace):
        return _of_weights(entries, error)
    part, settings, called = "", None, None  # of the innermost call with settings of the config
    for failed, given in reversed(failures.calls):
        if (entry := _find_entry(entries, part, given)) is not None:
            part, settings, called = *entry, failed
    unknown = failures.unknown if isinstance(error, KeyError | TypeError) else []
    for registry, kind in unknown:
        if (explanation := _of_type(cfg, entries, registry, kind)) is not None:
            return explanation
    if called is None:  # an error of training, for example
        return None
    loader = part.split(".")[0]
    if loader.endswith("_dataloader") and cfg[loader].get("dataset") is None:
        part, settings = f"{loader}.dataset", None  # the sampler or the loader failed
    reason = format_error(error)
    if isinstance(error, AssertionError) and not str(error):
        reason += f" {trace[-1].line}"
    named = _named_settings(settings, reason)
    if wrong := _UNEXPECTED.search(reason):
        kind = _class_of(called, settings)
        if (explanation := _of_missing_package(part, kind)) is not None:
            return explanation
        reason += _nearest(wrong[1], _arguments(kind))
    line = f"{part}{named}: {reason} ({Path(trace[-1].filename).name}:{trace[-1].lineno})"
    known = bool(named) or isinstance(error, OSError | ImportError)
    return LaunchError(line) if known else RuntimeError(line)


def _find_entry(entries: _Entries, outer: str, settings: object) -> tuple[str, object] | None:
    """Return the entry that is `settings`, or most similar to it, within `outer` if possible.

    mmengine builds copies, with values added and removed.
    """

    def likeness(entry: tuple[str, object]) -> tuple[int, int, bool]:
        key, value = entry
        within = key.startswith(f"{outer}.")
        if not (isinstance(value, Mapping) and isinstance(settings, Mapping)):
            return int(value == settings and not key.endswith(".type")), 0, within
        if value.get("type", settings.get("type")) != settings.get("type"):
            return 0, 0, within
        same = [name in settings and settings[name] == v for name, v in value.items()]
        return sum(same), -same.count(False), within

    best = max(entries, key=likeness)
    return best if likeness(best)[0] else None


def _of_type(cfg: Config, entries: _Entries, registry: Registry, kind: str) -> LaunchError | None:
    """Explain a type that is not registered, which can be due to a wrong `default_scope`."""
    scope, known = cfg.get("default_scope", "mmengine"), ["mmengine", *MODELS.children]
    if scope not in known:
        near = _nearest(scope, known)
        return LaunchError(f"default_scope={scope!r}: no installed package has this scope{near}")
    key = next((key for key, value in entries if value == kind), None)
    if key is None:
        return None
    names = {name for r in (registry, registry.parent or registry) for name in r.module_dict}
    place = f"not in the registry {registry.scope}::{registry.name}"
    return LaunchError(f"{key}={kind!r}: {place}{_nearest(kind, names)}")


def _class_of(called: Registry | Callable, settings: object) -> Callable | None:
    """Return the class or function that was called with the settings."""
    if not isinstance(called, Registry):
        return called
    kind = settings.get("type") if isinstance(settings, Mapping) else None
    if not isinstance(kind, str):
        return kind
    with called.switch_scope_and_registry(settings.get("_scope_")) as registry:
        return registry.get(kind)


def _of_missing_package(key: str, kind: Callable | None) -> LaunchError | None:
    """Explain heads of mmsegmentation that got an empty base because mmdetection did not import."""
    name = getattr(kind, "__name__", None)
    if getattr(inspect.getmodule(kind), f"MMDET_{name}", None) is not BaseModule:
        return None
    remedy = "run: pip install -e '.[mm,det]'"
    if find_spec("mmdet"):
        remedy = "add 'mmseg_ext.detection.operators_in_pytorch' to custom_imports"
    return LaunchError(f"{key}.type={name!r}: mmdetection cannot be imported; {remedy}")


def _arguments(kind: Callable | None) -> set[str]:
    """Return the argument names of a function, or of a class and its base classes."""
    functions = [c.__init__ for c in kind.__mro__] if inspect.isclass(kind) else [kind]
    return {n for f in functions if f for n in inspect.signature(f).parameters} | {"type"}


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


def _named_settings(settings: object, reason: str) -> str:
    """Return '.name=value, ...' of the settings that the reason names or repeats."""
    if not isinstance(settings, Mapping):
        return f"={settings!r}"
    words = {word.lstrip("_") for word in re.findall(r"-?[\w.]*\w", reason)}
    entries = [(k, v) for k, v in _entries("", settings) if k and not k.endswith("type")]
    wrong = _UNEXPECTED.search(reason)

    def is_named(key: str) -> bool:  # inside a setting a word without an underscore is too common
        last = key.rpartition(".")[2]
        return last == wrong[1] if wrong else last in words and (last == key or "_" in key)

    named = [(k, v) for k, v in entries if is_named(k)]
    named = named or [(k, v) for k, v in entries if isinstance(v, str | float) and str(v) in words]
    text = ", ".join(f"{name}={_short(repr(value))}" for name, value in named[:3])
    return f".{text}" if text else ""


def _entries(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of a setting and of all inside it, the outer ones first."""
    yield key, value
    inside = value.items() if isinstance(value, Mapping) else ()
    inside = enumerate(value) if isinstance(value, list | tuple) else inside
    for name, child in inside:
        yield from _entries(f"{key}.{name}" if key else str(name), child)


def _nearest(name: str, names: Iterable[str]) -> str:
    """Return '; did you mean X?', or nothing if no name is similar."""
    lower = {n.lower(): n for n in names}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
