"""Explain in one line why a config cannot be built: key, value and the nearest valid name.

A config is not checked in advance: whatever mmengine builds is accepted. While mmengine builds,
`explained` records which part of the config each registry and each method of the Runner works on.
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

from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.registry import DATA_SAMPLERS, HOOKS, MODELS, Registry
from mmengine.runner import EpochBasedTrainLoop, Runner, TestLoop, ValLoop
from torch import nn
from torch.utils.data import DataLoader

from mmseg_ext import errors
from mmseg_ext.checkpoint.loading import unwrap_model
from mmseg_ext.errors import LaunchError
from mmseg_ext.upstream import built_dataloaders

# The Runner's arguments, and other keys that mmengine and the commands read.
_KEYS = set(inspect.signature(Runner).parameters) | {
    "activation_checkpointing",
    "compile",
    "custom_imports",
    "efficient_conv_bn_eval",
    "find_unused_parameters",
    "min_backbone_share",
    "model_wrapper_cfg",
    "runner_type",
    "sync_bn",
    "tta_model",
    "tta_pipeline",
}
_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader")
# The keys of the config that each method of the Runner reads, the most likely one first, and the
# class or function that it calls with their settings.
_METHODS: dict[str, tuple[tuple[str, ...], Callable | None]] = {
    "set_randomness": (("randomness",), Runner.set_randomness),
    "setup_env": (("env_cfg",), None),
    "build_visualizer": (("visualizer",), None),
    "build_log_processor": (("log_processor",), None),
    "build_model": (("model",), None),
    "wrap_model": (("model_wrapper_cfg",), None),
    "register_default_hooks": (("default_hooks",), None),
    "register_custom_hooks": (("custom_hooks",), None),
    "call_hook": (("default_hooks", "custom_hooks"), None),
    "build_train_loop": (("train_cfg", "train_dataloader"), EpochBasedTrainLoop),
    "build_val_loop": (("val_cfg", "val_dataloader", "val_evaluator"), ValLoop),
    "build_test_loop": (("test_cfg", "test_dataloader", "test_evaluator"), TestLoop),
    "build_dataloader": (_LOADERS, DataLoader),
    "build_evaluator": (("val_evaluator", "test_evaluator"), None),
    "build_optim_wrapper": (("optim_wrapper",), None),
    "build_param_scheduler": (("param_scheduler",), None),
    "scale_lr": (("auto_scale_lr",), None),
}
_WEIGHTS = ("checkpoint", "pretrained", "load_from")  # keys that name files of weights
_UNEXPECTED = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")


@contextlib.contextmanager
def explained(cfg: Config) -> Iterator[None]:
    """Explain errors that are raised while parts of `cfg`, or weights that it names, are loaded.

    Raises:
        LaunchError: in one line, if the error is about a setting, a file or a missing package.
        RuntimeError: for any other error of a part of the config. It names the part, and the error
            is its cause. Errors of this package, and errors outside the config, pass unchanged.
    """
    with _recorded_calls() as calls:
        try:
            yield
        except Exception as error:
            if type(error).__module__ == errors.__name__:
                raise
            known, line = _explanation(cfg, calls, error)
            if line is None:
                raise
            raise (LaunchError if known else RuntimeError)(line) from error


def format_error(error: BaseException) -> str:
    """Return 'KeyError: ...' without line breaks, cut after 300 characters."""
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    return _short(" ".join(f"{type(error).__name__}: {message}".split()), 300)


def unread_options(cfg: Config, options: Iterable[str]) -> list[str]:
    """Return a warning for each key of `--cfg-options` that neither mmengine nor a command reads.

    A hook may read it. `cfg` is the config before the options are merged.
    """
    unread = [(key, top) for key in options if (top := key.split(".")[0]) not in _KEYS]
    return [
        f"--cfg-options {key}: nothing reads {top!r} after the config is loaded"
        + ("" if top in cfg else _nearest(top, _KEYS))
        for key, top in unread
    ]


def dataset_warnings(runner: Runner) -> list[str]:
    """Return warnings about datasets that do not fit the model, or each other.

    The last decode head must have as many classes as each dataset, and the datasets must agree on
    `reduce_zero_label`.
    """
    head = getattr(unwrap_model(runner.model), "decode_head", None)
    number = getattr(head[-1] if isinstance(head, nn.ModuleList) else head, "num_classes", None)
    metas = [getattr(loader.dataset, "metainfo", None) for loader in built_dataloaders(runner)]
    named = [meta.get("classes") for meta in metas if isinstance(meta, Mapping)]
    counts = {len(classes) for classes in named if isinstance(classes, list | tuple)}
    warnings = [
        f"model.decode_head.num_classes={number}, but a dataset has {count} classes"
        for count in sorted(counts)
        if isinstance(number, int) and count != number
    ]
    loaders = built_dataloaders(runner)
    datasets = (part for loader in loaders for part in _inner_datasets(loader.dataset))
    if {True, False} <= {getattr(dataset, "reduce_zero_label", None) for dataset in datasets}:
        warnings.append(
            "reduce_zero_label is True in one dataset and False in another: their labels differ by "
            "one class; set one value for all"
        )
    return warnings


def _inner_datasets(dataset: object) -> Iterator[object]:
    """Yield the datasets inside wrappers such as ConcatDataset and RepeatDataset."""
    inside = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    for part in inside:
        yield from [dataset] if part is None else _inner_datasets(part)


class _Call(NamedTuple):
    """A call of a registry's `build`, or of a method of the Runner."""

    name: str
    registry: Registry | None
    settings: object


class _Calls:
    """The calls that run now, those that raised the last error, and the last unknown type."""

    def __init__(self):
        self.running: list[_Call] = []
        self.failed: list[_Call] = []
        self.error: Exception | None = None
        self.unknown: tuple[Registry, str] | None = None

    def record(self, original: Callable | staticmethod, name: str) -> Callable | staticmethod:
        static = isinstance(original, staticmethod)
        function = original.__func__ if static else original

        @functools.wraps(function)
        def call(*args, **kwargs):
            registry = args[0] if isinstance(args[0], Registry) else None
            settings = next(iter([*args[not static :], *kwargs.values()]), None)
            self.running.append(_Call(name, registry, settings))
            self.unknown = None
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if self.error not in _chain(error):  # else an inner call has recorded it
                    self.error, self.failed = error, self.running[:]
                raise
            finally:
                self.running.pop()

        return staticmethod(call) if static else call

    def record_unknown(self, get: Callable) -> Callable:
        @functools.wraps(get)
        def call(registry: Registry, key: str):
            found = get(registry, key)
            self.unknown = (registry, key) if found is None else self.unknown
            return found

        return call


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def _recorded_calls() -> Iterator[_Calls]:
    """Record the calls of all registries and of the Runner's methods while the block runs."""
    calls = _Calls()
    replaced = [(Registry, "get"), (Registry, "build"), *((Runner, name) for name in _METHODS)]
    originals = [(owner, name, vars(owner)[name]) for owner, name in replaced]
    for owner, name, original in originals:
        record = (
            calls.record_unknown if name == "get" else functools.partial(calls.record, name=name)
        )
        setattr(owner, name, record(original))
    try:
        yield calls
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


class _Part(NamedTuple):
    """A part of the config that was being built."""

    key: str  # empty for the config itself
    settings: object
    called: Callable | None


def _explanation(cfg: Config, calls: _Calls, error: Exception) -> tuple[bool, str | None]:
    """Return whether the error is about a setting, file or package, and the explaining line."""
    trace = traceback.extract_tb(error.__traceback__)
    if any(f.name == "load_checkpoint" and "mmengine" in f.filename for f in trace):
        return True, _of_weights(cfg, error)
    failed = calls.failed if calls.error in _chain(error) else []
    if not failed and trace[-1].name != "build_from_cfg":  # an error of training, for example
        return False, None
    part, keys = _failed_part(cfg, failed)
    line = None
    if calls.unknown:
        line = _of_type(cfg, keys, *calls.unknown)
    elif wrong := _UNEXPECTED.search(str(error)):
        line = _of_missing_package(part) or _of_argument(cfg, part, keys, *wrong.groups())
    elif failed:
        line = _of_dataset(cfg, part, failed[-1])
    if line is not None:
        return True, line
    unwritable = isinstance(error, OSError) and not part.key  # the work directory
    if not failed or failed[-1].name == "call_hook" or unwritable:
        return False, None
    reason = format_error(error)
    if isinstance(error, AssertionError) and not str(error):
        reason += f" {trace[-1].line}"
    named = _named_settings(part, reason)
    where = f"{part.key}.{named}" if part.key and named else part.key or named or "config"
    line = f"{where}: {reason} ({Path(trace[-1].filename).name}:{trace[-1].lineno})"
    return bool(named) or isinstance(error, OSError | ImportError), line


def _failed_part(cfg: Config, calls: Iterable[_Call]) -> tuple[_Part, list[str]]:
    """Return the innermost part of the config among nested calls, and the keys it can be below."""
    part, keys = _Part("", cfg, Runner), [key for key in cfg if key in _KEYS]
    for call in calls:
        if call.registry is None:
            read, called = _METHODS[call.name]
            keys = [key for key in read if key in keys] or [key for key in read if key in cfg]
            part = _Part(keys[0], cfg[keys[0]], called) if keys else part
        elif found := _entry(cfg, keys, call.settings):
            part = _Part(*found, _called(call.registry, found[1]))
            keys = [found[0], *keys]
    return part, keys


def _called(registry: Registry, settings: object) -> Callable | None:
    """Return the class or function of this type."""
    kind = settings.get("type") if isinstance(settings, Mapping) else None
    if not isinstance(kind, str):
        return kind
    with registry.switch_scope_and_registry(settings.get("_scope_")) as scoped:
        return scoped.get(kind)


def _entry(cfg: Config, keys: list[str], settings: object) -> tuple[str, object] | None:
    """Return (key, value) of the entry below `keys` that is `settings`, or most similar to it.

    mmengine builds copies, with values added and removed.
    """
    entries = _below(cfg, keys)
    if not isinstance(settings, Mapping):
        return next((entry for entry in entries if entry[1] == settings), None)

    def likeness(entry: tuple[str, Mapping]) -> int:
        same = [k in settings and settings[k] == v for k, v in entry[1].items()]
        return sum(same) - same.count(False)

    kind = settings.get("type")
    same = [e for e in entries if isinstance(e[1], Mapping) and e[1].get("type") == kind]
    same = [e for e in same if e[1].keys() & settings.keys()]
    return max(same, key=likeness, default=None)


def _of_type(cfg: Config, keys: list[str], registry: Registry, kind: str) -> str | None:
    """Explain a type that is not registered, which can be due to a wrong `default_scope`."""
    scope, known = cfg.get("default_scope", "mmengine"), ["mmengine", *MODELS.children]
    if scope not in known:
        near = _nearest(scope, known)
        return f"default_scope={scope!r}: no installed package has this scope{near}"
    key = next((key for key, value in _below(cfg, keys) if value == kind), None)
    if key is None:
        return None
    names = {name for r in (registry, registry.parent or registry) for name in r.module_dict}
    place = f"not in the registry {registry.scope}::{registry.name}"
    return f"{key}={kind!r}: {place}{_nearest(kind, names)}"


def _of_missing_package(part: _Part) -> str | None:
    """Explain heads of mmsegmentation that got an empty base because mmdetection did not import."""
    module = vars(inspect.getmodule(part.called) or inspect)
    bases = getattr(part.called, "__bases__", ())
    if bases != (BaseModule,) or not any(name.startswith("MMDET_") for name in module):
        return None
    remedy = "run: pip install -e '.[mm,det]'"
    if find_spec("mmdet"):
        remedy = "add 'mmseg_ext.detection.operators_in_pytorch' to custom_imports"
    kind = getattr(part.called, "__name__", "")
    return f"{part.key}.type={kind!r}: mmdetection cannot be imported; {remedy}"


def _of_argument(cfg: Config, part: _Part, keys: list[str], function: str, name: str) -> str | None:
    """Explain that `function` has no argument `name`, which is a key of the part, or of another."""
    owners = [(part.key, part.settings), *_below(cfg, keys)]
    key, settings = next(
        ((k, v) for k, v in owners if k and isinstance(v, Mapping) and name in v), (None, None)
    )
    if key is None:
        return None
    called = part.called if key == part.key else _called(HOOKS, settings)
    nearest = _nearest(name, _arguments(called) | {"type"}) if called else ""
    function = getattr(called, "__name__", function)
    return f"{key}.{name}={_short(repr(settings[name]))}: {function} takes no {name!r}{nearest}"


def _of_dataset(cfg: Config, part: _Part, call: _Call) -> str | None:
    """Explain a data loader without a dataset; the sampler or the loader raises the error."""
    key = part.key.split(".")[0]
    if key not in _LOADERS or call.registry not in (None, DATA_SAMPLERS):
        return None
    dataset = cfg[key].get("dataset")
    if isinstance(dataset, Mapping):
        return None
    return f"{key}.dataset={_short(repr(dataset))}: a dict with a type is needed"


def _of_weights(cfg: Config, error: Exception) -> str | None:
    """Explain that a file of weights cannot be read; the error may not name it."""
    entries = _below(cfg, [key for key in cfg if key in _KEYS])
    named = [(k, v) for k, v in entries if k.endswith(_WEIGHTS) and isinstance(v, str)]
    named = [e for e in named if e[1] in str(error)] or [e for e in named if "://" in e[1]]
    if not named:
        return None
    key, name = named[0]
    remedy = "name a local file"
    if key.startswith("model."):  # `pretrained`, or `checkpoint` of an `init_cfg`
        entry = re.sub(r"(\.\d+)?\.checkpoint$", "", key)
        remedy += f" with --cfg-options {key}=FILE, or train from scratch with {entry}=None"
    return f"{key}={name!r} cannot be loaded ({format_error(error)}); {remedy}"


def _named_settings(part: _Part, reason: str) -> str:
    """Return 'name=value, ...' of the part's settings that the reason is about.

    These are arguments that it names, else texts and fractions that it repeats.
    """
    words = {word.lstrip("_") for word in re.findall(r"-?[\w.]*\w", reason)}
    arguments = _arguments(part.called) if part.called else set()
    entries = list(_entries("", part.settings))[1:]
    named = [
        (k, v) for k, v in entries if k in words & arguments or ("_" in k and _last(k) in words)
    ]
    if not named:
        values = [(k, v) for k, v in entries if isinstance(v, str | float) and _last(k) != "type"]
        named = [(k, v) for k, v in values if str(v) in words]
    return ", ".join(f"{name}={_short(repr(value))}" for name, value in named[:3])


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _below(cfg: Config, keys: Iterable[str]) -> list[tuple[str, object]]:
    """Return (dotted key, value) of everything below the dotted `keys`."""
    found = []
    for key in keys:
        value: object = cfg
        for name in key.split("."):
            value = value[int(name) if isinstance(value, list | tuple) else name]
        found += _entries(key, value)
    return found


def _entries(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of a setting and of all inside it, the outer ones first."""
    yield key, value
    inside = value.items() if isinstance(value, Mapping) else ()
    inside = enumerate(value) if isinstance(value, list | tuple) else inside
    for name, child in inside:
        yield from _entries(f"{key}.{name}" if key else str(name), child)


def _arguments(called: Callable) -> set[str]:
    """Return the names of a function's arguments, or of a class's and its bases' constructors'."""
    functions = [called]
    if inspect.isclass(called):
        functions = [vars(c)["__init__"] for c in called.__mro__ if "__init__" in vars(c)]
    parameters = [p for f in functions for p in inspect.signature(f).parameters.values()]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in named} - {"self"}


def _nearest(name: str, names: Iterable[str]) -> str:
    """Return '; did you mean X?', or nothing if no name is similar."""
    lower = {n.lower(): n for n in names}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
