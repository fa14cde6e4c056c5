"""What went wrong while a config was built, in one line: key, value and the nearest legal name.

Nothing is predicted: a config that trains with mmengine's Runner trains here. mmengine builds it,
and the frames of the exception that comes out say which part was being built and what was called.
Two comparisons that nothing else makes are warnings.
"""

import contextlib
import difflib
import functools
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import Runner
from mmengine.runner.checkpoint import CheckpointLoader
from torch import nn

from mmseg_ext import errors
from mmseg_ext.checkpoint.loading import unwrap_model
from mmseg_ext.errors import LaunchError
from mmseg_ext.upstream import built_dataloaders

# The arguments of the Runner, and what mmengine and the tools read of a config beside them.
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
_LOADING = (CheckpointLoader.__module__, "load_checkpoint")  # module and function
_UNEXPECTED = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")


@contextlib.contextmanager
def explained(cfg: Config) -> Iterator[None]:
    """Explain what building parts of `cfg`, or loading the weights that it names, raises.

    Raises:
        LaunchError: in place of the exception, in one line. Exceptions of this package, and those
            that come from no part of the config, pass unchanged.
    """
    try:
        yield
    except Exception as error:
        own = type(error).__module__ == errors.__name__
        line = None if own else _explanation(cfg, error)
        if line is None:
            raise
        raise LaunchError(line) from error


def format_error(error: BaseException) -> str:
    """'KeyError: ...' without line breaks, cut after 300 characters."""
    message = error.args[0] if isinstance(error, KeyError) and error.args else error
    return _short(" ".join(f"{type(error).__name__}: {message}".split()), 300)


def unread_options(cfg: Config, options: Iterable[str]) -> list[str]:
    """A warning for each key of `--cfg-options` that neither mmengine nor a tool reads.

    A hook may read it. `cfg` is the config before the options are merged.
    """
    unread = [(key, top) for key in options if (top := key.split(".")[0]) not in _KEYS]
    return [
        f"--cfg-options {key}: nothing reads {top!r} after the config is loaded"
        + ("" if top in cfg else _nearest(top, _KEYS))
        for key, top in unread
    ]


def dataset_warnings(runner: Runner) -> list[str]:
    """A warning for each number of classes of a dataset that is not the last decode head's, and
    one if the datasets disagree about `reduce_zero_label`.
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
    datasets = (part for loader in built_dataloaders(runner) for part in _leaves(loader.dataset))
    if {True, False} <= {getattr(dataset, "reduce_zero_label", None) for dataset in datasets}:
        warnings.append(
            "reduce_zero_label is True in one dataset and False in another: their labels differ by "
            "one class, so the scores are not those of what is trained"
        )
    return warnings


def _leaves(dataset: object) -> Iterator[object]:
    """The datasets inside wrappers such as ConcatDataset and RepeatDataset."""
    inside = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    for part in inside:
        yield from [dataset] if part is None else _leaves(part)


class _Part(NamedTuple):
    """What a registry was building when the exception came, as the config has it."""

    key: str  # empty for the Runner
    settings: Mapping
    kind: object
    called: Callable | None
    registry: Registry


def _explanation(cfg: Config, error: Exception) -> str | None:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    for frame in frames:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _LOADING:
            return _of_weights(cfg, frame.f_locals["filename"], error)
    part = next(filter(None, (_part(cfg, frame) for frame in frames)), None)
    wrong = _UNEXPECTED.match(str(error))
    line = _of_argument(cfg, part, *wrong.groups(), frames[0]) if wrong else None
    if line is None and part and (part.key or not isinstance(error, OSError)):
        line = _of_part(part, error, frames[0])
    return line  # none where a work directory cannot be written


def _part(cfg: Config, frame: FrameType) -> _Part | None:
    """What the frame builds, where it is a builder's and the part is written in the config."""
    registry, settings = (frame.f_locals.get(name) for name in ("registry", "cfg"))
    if not isinstance(registry, Registry) or not isinstance(settings, Config | Mapping):
        return None
    root = isinstance(settings, Config)
    kind = settings.get("runner_type", "Runner") if root else settings.get("type")
    called = registry.get(kind) if isinstance(kind, str) else kind
    if root:
        return _Part("", settings, kind, called, registry)

    def likeness(entry: tuple[str, dict]) -> int:
        return sum(k in entry[1] and entry[1][k] == v for k, v in settings.items())

    same = [(k, v) for k, v in _entries(cfg) if isinstance(v, dict) and v.get("type") == kind]
    key, own = max(same, key=likeness, default=(None, None))
    return key and _Part(key, own, kind, called, registry)


def _of_part(part: _Part, error: Exception, innermost: FrameType) -> str:
    key, settings, kind, called, registry = part
    if called is None:
        setting = f"{key}.type" if key else "runner_type"
        names = [*registry.module_dict, *(registry.parent or registry).module_dict]
        where = f"the registry {registry.scope}::{registry.name} lacks it"
        return f"{setting}={kind!r}: {where}{_nearest(str(kind), names)}"
    reason = format_error(error)
    if isinstance(error, AssertionError) and not str(error):
        reason += f" {traceback.extract_tb(error.__traceback__)[-1].line}"
    told = settings.keys() & _arguments(called) & set(re.findall(r"\w+", reason))
    if key and told:
        name = max(told, key=len)
        key = f"{key}.{name}={_short(repr(settings[name]))}"
    place = f"{Path(innermost.f_code.co_filename).name}:{innermost.f_lineno}"
    return f"{key or 'config'}: {reason} ({place})"


def _of_argument(
    cfg: Config, part: _Part | None, function: str, name: str, caller: FrameType
) -> str | None:
    """`function` takes no argument `name`, which the part has, or a dict that mmengine unpacks."""
    if part and name in part.settings:
        key, settings, called = part.key, part.settings, part.called
        function = getattr(called, "__name__", function)
    elif caller.f_globals["__name__"].startswith("mmengine."):
        dicts = ((k, v) for k, v in _entries(cfg) if isinstance(v, dict) and name in v)
        key, settings = next(dicts, (None, {}))
        function, *attributes = function.split(".")
        called = caller.f_globals.get(function)
        called = called and functools.reduce(getattr, attributes, called)
    else:
        return None
    nearest = _nearest(name, _arguments(called) | {"type"}) if called else ""
    setting = f"{key}.{name}={_short(repr(settings[name]))}" if key else name
    return f"{setting}: {function} takes no {name!r}{nearest}"


def _of_weights(cfg: Config, name: str, error: Exception) -> str:
    key = next((k for k, v in _entries(cfg) if v == name), "weights")
    remedy = "name a local file"
    if key.startswith("model."):  # `pretrained`, or `checkpoint` of an `init_cfg`
        entry = re.sub(r"(\.\d+)?\.checkpoint$", "", key)
        remedy += f" with --cfg-options {key}=FILE, or train from scratch with {entry}=None"
    return f"{key}={name!r} cannot be loaded ({format_error(error)}); {remedy}"


def _entries(cfg: Config) -> Iterator[tuple[str, object]]:
    """(dotted key, value) of all that the Runner and the tools read, outer ones first."""
    left = [(key, cfg[key]) for key in cfg if key in _KEYS][::-1]
    while left:
        key, node = left.pop()
        yield key, node
        children = node.items() if isinstance(node, dict) else ()
        children = enumerate(node) if isinstance(node, list | tuple) else children
        left += [(f"{key}.{name}", child) for name, child in children][::-1]


def _arguments(called: Callable) -> set[str]:
    """The names that a function takes, or the constructors of a class and of those above it."""
    functions = [called]
    if inspect.isclass(called):
        functions = [vars(c)["__init__"] for c in called.__mro__ if "__init__" in vars(c)]
    parameters = [p for f in functions for p in inspect.signature(f).parameters.values()]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in named} - {"self"}


def _nearest(name: str, names: Iterable[str]) -> str:
    """'; did you mean X?', or nothing where no name is near."""
    lower = {n.lower(): n for n in names}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
