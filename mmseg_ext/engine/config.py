"""Configs: loading them with `--cfg-options`, and the facts about the data in them.

Keys that have no effect are warnings. Of the data, functions return the datasets inside wrappers,
classes and palette, the channels of images and the size of crops.
"""

import difflib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import init_dist
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

from mmseg_ext.environment import configs_folder
from mmseg_ext.errors import LaunchError, format_error
from mmseg_ext.reports.records import read_records
from mmseg_ext.upstream import base_configs

# The Runner's arguments, and other keys that mmengine and the commands read.
KEYS = set(inspect.signature(Runner).parameters)
KEYS |= {"activation_checkpointing", "compile", "compile_blocks"}
KEYS |= {"custom_imports", "efficient_conv_bn_eval", "find_unused_parameters"}
KEYS |= {"channels_last", "cuda_graph", "float32_matmul_precision", "image_counts"}
KEYS |= {"import_from", "min_backbone_share", "model_wrapper_cfg", "runner_type", "sync_bn"}
KEYS |= {"tta_model", "tta_pipeline"}
_FOLDERS: set[str] = set()  # in which Python finds modules of configs that were loaded
_MMSEG_BASE = (
    "_base_: mmengine looks for 'mmseg::' in a distribution called mmsegmentation, and "
    "installing it would overwrite this mmseg; set the path of the file: "
    '_base_ = __import__("mmseg").__path__[0] + "/.mim/configs/..."'
)


def model_names() -> list[str]:
    """Return the names of the configs, sorted."""
    return sorted(path.stem for path in configs_folder().glob("*.py"))


def load_config(
    path: str,
    options: dict | None = None,
    work_dir: str | None = None,
    launcher: str = "none",
) -> Config:
    """Load the config at `path`, or of this project or model, and merge `options` into it.

    The work directory is `work_dir`, else the config's, else `work_dirs/<config's name>`.

    Raises:
        LaunchError: if the file does not load, or an option does not fit.
    """
    cfg = load_file(path, options or {})
    merge_options(cfg, options or {}, work_dir, launcher)
    return cfg


def load_file(path: str, options: Iterable[str] = ()) -> Config:
    """Load the config at `path`, or of this project or model, and print its warnings.

    The warnings are also about the names in `options`, which only `merge_options` sets.

    Raises:
        LaunchError: if the file does not load.
    """
    path = _path_of(path)
    try:
        cfg = Config.fromfile(path, import_custom_modules=False)
        _import_modules(cfg, path)
    except LaunchError:
        raise
    except Exception as error:  # a config is a program and can raise anything
        raise LaunchError(f"config {path}: {_loading_problem(path, error)}") from error
    warnings = unread_keys(cfg, options)
    if "custom_imports" in Path(path).read_text(errors="replace"):
        dropped = dropped_imports(path)
        if dropped:  # a class of another module may have the name of theirs
            imports = [*_imports_of(cfg), *dropped]
            warnings.append(f"custom_imports replaces the base's list; to keep it, set {imports=}")
    warnings += _follow_move(cfg, path)
    for warning in warnings:
        if os.environ.get("RANK", "0") == "0":
            print(f"mmseg_ext: {warning}", file=sys.stderr)
    return cfg


def merge_options(
    cfg: Config, options: Mapping[str, Any], work_dir: str | None, launcher: str
) -> None:
    """Set what a command line sets, in place; see `load_config`.

    Raises:
        LaunchError: if an option does not fit.
    """
    cfg.launcher = launcher
    try:
        fitting = {key: _with_kind_of(cfg, key, value) for key, value in options.items()}
        cfg.merge_from_dict(fitting)
    except (KeyError, IndexError, TypeError, AssertionError) as error:
        raise LaunchError(f"--cfg-options {options}: {format_error(error)}") from error
    cfg.work_dir = work_dir or cfg.get("work_dir") or f"./work_dirs/{Path(str(cfg.filename)).stem}"


def _follow_move(cfg: Config, path: str) -> list[str]:
    """Set the paths of a run's config to where its files are now; return a note if they moved.

    The config in a work directory, or in a folder of logs there, has absolute paths. After a move
    they would lead to the old place, or after a copy to the data of the original. The common part
    of the paths of work directory and data moves with both: of `a/run` and `a/data`, copied to `b`,
    the data is in `b/data`. A path stays if nothing is at the new place, because only the work
    directory was copied; all paths of a project follow its own `work_dir`.
    """
    file, record = Path(path).resolve(), {}
    written = str(cfg.get("work_dir") or "")
    for new in file.parents[:3]:  # the work directory, or above `20260131_235959/vis_data`
        of_project = new.name == "work_dir" and (new.parent / "config.py").is_file()
        try:
            records = read_records(new)
        except ValueError as error:  # the paths may be right
            return [str(error)]
        # A config of a user can be in a folder of runs, too.
        names = {log: Path(str(one.get("config"))).name for log, one in records.items()}
        own = [records[log] for log in records if log in file.parents or names[log] == file.name]
        record = own[-1] if own else {}
        if of_project or own:
            break
    else:
        return []
    if not Path(written).is_absolute():
        written = str(record.get("folder") or "")
    old = Path(written)
    if not old.is_absolute() or (of_project and old.name != "work_dir"):
        return []
    is_project_called_work_dir = of_project and old.parent.resolve() == file.parent
    if old.resolve() == new or is_project_called_work_dir:
        return []
    moved = {}
    for key, value in settings_inside("", cfg.to_dict()):
        if not isinstance(value, str) or not Path(value).is_absolute():
            continue
        common = Path(os.path.commonpath([old, value]))
        place = new / os.path.relpath(value, old)
        if of_project:
            moves = Path(value).is_relative_to(old.parent)
        else:
            moves = common != Path(common.anchor) and place.exists()
        if moves:
            moved[key.removeprefix(".")] = os.path.normpath(place)
    if not of_project:
        moved["work_dir"] = str(new)  # it can be relative
    cfg.merge_from_dict(moved)
    if of_project:
        return [
            f"{path}: its project was in {old.parent}; the paths there are replaced by {new.parent}"
        ]
    changed = [f"{key} is now {value}" for key, value in moved.items() if key != "work_dir"]
    return ["; ".join([f"{path}: its work directory was {old}", *changed[:1]])]


def _import_modules(cfg: Config, path: str) -> None:
    """Import the config's `custom_imports`, also from its folder or the current one.

    The config keeps the folders as `import_from`, so a copy of it elsewhere finds its modules, too.

    Raises:
        LaunchError: if a module of this name has been imported for a config in another folder.
    """
    folder = Path(path).resolve().parent
    own = {}
    for name in _imports_of(cfg):
        first = name.partition(".")[0]
        # 'my_project.my_head', or 'my_head'
        for place in map(str, (Path.cwd(), *cfg.get("import_from", ()), folder.parent, folder)):
            if Path(place, first).is_dir() or Path(place, f"{first}.py").is_file():
                own[name] = place
    for place in own.values():
        if place not in sys.path:
            sys.path.append(place)  # last: it hides no installed package
            _FOLDERS.add(place)
    places = {place for name, place in own.items() if name != "mmseg_ext"}
    if places:
        cfg.import_from = sorted(places)
    if cfg.get("custom_imports"):
        import_modules_from_strings(**cfg.custom_imports)
    for name, place in own.items():
        file = Path(getattr(sys.modules.get(name), "__file__", None) or place)
        if not file.is_relative_to(place) and any(map(file.is_relative_to, _FOLDERS)):
            raise LaunchError(
                f"custom_imports: {name!r} is already imported from {file}; start a new process, "
                f"or rename the module in {place}"
            )


def _imports_of(cfg: Config) -> list[str]:
    return as_list((cfg.get("custom_imports") or {}).get("imports"))


def dropped_imports(path: str) -> list[str]:
    """Return the modules in `custom_imports` of a config's bases that its own list replaces."""
    own = _imports_of(Config.fromfile(path, import_custom_modules=False))
    dropped = []
    for base in base_configs(path):
        of_base = _imports_of(Config.fromfile(base, import_custom_modules=False))
        for name in (*of_base, *dropped_imports(base)):
            if name not in own:
                dropped.append(name)
    return dropped


def _loading_problem(path: str, error: Exception) -> str:
    """Return why a config does not load."""
    if Path(path).suffix in (".pth", ".safetensors"):
        return "is a checkpoint; pass the config first, then the checkpoint"
    if "mmsegmentation is not installed" in str(error):
        return _MMSEG_BASE
    # mmengine hides the module that cannot be imported, and why.
    causes: list[BaseException] = [error]
    while causes[-1].__context__ is not None:
        causes.append(causes[-1].__context__)
    reason = "; ".join(map(format_error, causes[-2:]))
    if isinstance(causes[-1], ModuleNotFoundError) and "Failed to import" in reason:
        reason += f"; put the module next to {path}, or set PYTHONPATH=FOLDER"
    if "is already registered" in reason:
        reason += "; give your class another name, or set register_module(force=True)"
    # mmengine compiles the rest of a config with the name of the file, and `_base_` without one.
    last_file = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, NameError) and not last_file:
        reason += "; mmengine evaluates `_base_` without the rest of the file; write full paths"
    return reason


def _path_of(name: str) -> str:
    """Return the path of the config `name`: a path, a project, or a name of `model_names`.

    Raises:
        LaunchError: if `name` has no ending, and no model has this name.
    """
    names = model_names()
    if Path(name).is_dir() and name not in names:
        return str(Path(name, "config.py"))
    if Path(name).suffix or Path(name).is_file():
        return name
    if name not in names:
        hint = nearest(name, names) or "; mmseg_ext.list_models() returns all names"
        raise LaunchError(f"config: there is no model {name!r}{hint}")
    return str(configs_folder() / f"{name}.py")


def _with_kind_of(cfg: Config, key: str, value: Any) -> Any:
    """Return `value`, as a tuple if it is a list that replaces a tuple.

    The option `size=97,97` is a list, and mmcv's transforms accept only tuples.
    """
    if not isinstance(value, list):
        return value
    old: Any = cfg
    for name in key.split("."):
        try:
            old = old[int(name)] if isinstance(old, list | tuple) else old[name]
        except (KeyError, ValueError, IndexError, TypeError):
            return value  # a new key; merging explains a wrong one
    return tuple(value) if isinstance(old, tuple) else value


def unread_keys(cfg: Config, options: Iterable[str]) -> list[str]:
    """Return warnings for keys that nothing reads.

    These are the keys of `--cfg-options` that only a hook can read, keys of the file `cfg` that
    resemble a key of the Runner, and unknown arguments of `env_cfg.dist_cfg`.
    """
    changed = {option.split(".")[0] for option in options}
    warnings = []
    for key in sorted((set(cfg) | changed) - KEYS):
        # Files also have variables of their own, such as `norm_cfg` or `train_pipeline`, and those
        # in plain Python have imported classes.
        if callable(cfg.get(key)):
            continue
        near = nearest(key, KEYS, 0.885 if key in cfg else 0.6)
        if near or key in changed:
            place = "--cfg-options: " if key in changed else ""
            warnings.append(f"{place}{key!r} has no effect: it is not used after loading{near}")
    known = arguments(init_dist) | arguments(torch.distributed.init_process_group)
    given = set(cfg.get("env_cfg", {}).get("dist_cfg", {}))
    for key in sorted(given - known):
        warnings.append(f"env_cfg.dist_cfg.{key} has no effect{nearest(key, known)}")
    return warnings


def arguments(kind: Callable | None) -> set[str]:
    """Return the argument names of a function, or of a class and its base classes."""
    functions: list[Any] = []
    if inspect.isclass(kind):
        functions = [parent.__init__ for parent in kind.__mro__]
    elif kind is not None:
        functions = [kind]
    names = {"type"}
    for function in functions:
        names.update(inspect.signature(function).parameters)
    return names


def nearest(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """Return '; did you mean X?', or nothing if no name is similar."""
    by_lower_case = {known.lower(): known for known in names}
    found = difflib.get_close_matches(name.lower(), by_lower_case, 1, likeness)
    if not found:
        return ""
    return f"; did you mean {by_lower_case[found[0]]!r}?"


def as_list(settings: Any) -> list:
    """Return a setting that may be one or several: heads, losses, metrics, `init_cfg`."""
    if isinstance(settings, list):
        return settings
    return [settings] if settings else []


def settings_inside(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of a setting and of all inside it, the outer ones first."""
    yield key, value
    if isinstance(value, Mapping):
        inside = value.items()
    elif isinstance(value, list | tuple):
        inside = enumerate(value)
    else:
        return
    for name, child in inside:
        yield from settings_inside(f"{key}.{name}", child)


def inner_datasets(dataset: Any) -> Iterator[Any]:
    """Yield the datasets inside wrappers, or for settings, the settings of these datasets."""
    values = dataset if isinstance(dataset, Mapping) else getattr(dataset, "__dict__", {})
    # `inner` is an attribute of `SeededSamples`.
    parts = values.get("datasets") or [values.get("inner"), values.get("dataset")]
    is_wrapper = False
    for part in parts:
        if part is not None and not isinstance(part, str):
            is_wrapper = True
            yield from inner_datasets(part)
    if not is_wrapper:
        yield dataset


def type_name(settings: Mapping) -> str:
    """Return the name of the `type`: of a class, or of a string without a scope or module."""
    kind = settings["type"]
    return kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__


def crop_size(config: Any) -> tuple[int, int]:
    """Return (height, width) of a config's crops; raise LaunchError if it has none."""
    size = config.get("crop_size") or (config.model.get("data_preprocessor") or {}).get("size")
    if size is None:
        raise LaunchError(f"{config.filename}: has no crop_size; add crop_size = (HEIGHT, WIDTH)")
    return (size, size) if isinstance(size, int) else tuple(size)


def input_channels(model: Mapping) -> int:
    """Return the channels of the images that the network of a config's `model` takes."""
    return model.get("backbone", {}).get("in_channels", 3)


def classes_and_palette(settings: dict) -> dict:
    """Return `classes` and `palette` of the dataset that `settings` describe.

    They are the class's METAINFO, changed by `metainfo` in the settings. The dataset is not built,
    because its files may be on another machine, and some classes look for them when they are built.

    Raises:
        ValueError: if the type is unknown, or neither place names classes.
    """
    from mmseg.datasets import BaseSegDataset  # `inner_datasets` works without mmsegmentation
    from mmseg.registry import DATASETS

    settings = next(inner_datasets(settings))
    kind = settings["type"]
    if isinstance(kind, str):
        kind = DATASETS.get(kind)
    if kind is None:
        raise ValueError(f"there is no dataset of type {settings['type']!r}")

    class WithoutFiles(BaseSegDataset):
        METAINFO = kind.METAINFO

    meta = WithoutFiles(metainfo=settings.get("metainfo"), lazy_init=True).metainfo
    if not meta.get("classes"):
        raise ValueError(f"{settings['type']} has no classes; set its metainfo=dict(classes=...)")
    return {"classes": tuple(meta["classes"]), "palette": meta["palette"]}
