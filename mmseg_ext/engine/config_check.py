"""A resolved config looked through before anything is built from it.

mmengine answers a wrong setting with the traceback of whatever met it first, or not at all: a
metric takes any keyword, an unused key of `--cfg-options` is kept and never read. `check_config`
finds, in the order in which a reader would look for them:

- keys of `--cfg-options` that nothing reads, and variables of the config that were read already;
- parts that are missing, and values of the wrong kind (`val_interval=0`, a learning rate in words);
- types that no registry knows, and arguments that a type does not take, each with the nearest name;
- a number of classes that is not the dataset's, a `save_best` that no metric gives, crops that the
  preprocessor does not take;
- channels and indices that do not fit: one forward pass on the meta device, which has no data.

Each ends in one `LaunchError` that names the key, its value and what is legal.
"""

import copy
import difflib
import importlib
import inspect
import logging
import numbers
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from mmengine import registry as registries
from mmengine.config import Config
from mmengine.dist import get_dist_info
from mmengine.registry import RUNNERS, DefaultScope, Registry
from mmengine.runner import LogProcessor, Runner
from torch import nn
from torch.utils.data import DataLoader

from mmseg_ext.environment import stack_problem
from mmseg_ext.errors import LaunchError

# What a tool reads of a config beside the arguments of mmengine's Runner.
_READ_BY_TOOLS = {
    "allow_overlap",
    "compile",
    "custom_imports",
    "find_unused_parameters",
    "min_backbone_share",
    "model_wrapper_cfg",
    "runner_type",
    "strategy",
    "sync_bn",
    "tta_model",
    "tta_pipeline",
}
_KEYS_OF = {
    "auto_scale_lr": {"enable", "base_batch_size"},
    "env_cfg": {"cudnn_benchmark", "mp_cfg", "dist_cfg", "resource_limit"},
    "randomness": {"seed", "diff_rank_seed", "deterministic"},
}
# Keys that the builder of a kind takes off before it calls the type.
_BUILDERS_KEYS = {
    "optim_wrapper": {"constructor", "paramwise_cfg", "optimizer"},
    "param_scheduler": {"convert_to_iter_based"},
    "norm_cfg": {"requires_grad"},
    "init_cfg": {"override", "layer", "bias", "bias_prob"},
    "act_cfg": {"inplace"},
}
# Whose type is no name in a registry; the last two are mmdetection's, by names of mmcv's operators.
_NO_REGISTRY = ("paramwise_cfg", "metainfo", "roi_layer", "nms")
_LISTS_OF_DICTS = ("custom_hooks", "param_scheduler", "vis_backends", "pipeline", "transforms")
_DATALOADER_KEYS = {"dataset", "sampler", "batch_sampler", "collate_fn", "num_batch_per_epoch"}
_NEEDED = {
    "train": ("model", "train_dataloader", "train_cfg", "optim_wrapper"),
    "test": ("model", "test_dataloader", "test_cfg", "test_evaluator"),
}


def check_config(cfg: Config, mode: str = "train") -> None:
    """Look through the config of a training (`mode='train'`) or of a test (`'test'`).

    Raises:
        LaunchError: for the first wrong setting.
    """
    for key in _NEEDED[mode]:
        if not cfg.get(key):
            raise LaunchError(f"config: there is no {key!r}, which {mode}.py needs")
    known = _known_types(_imported_scope(cfg))
    for key in _runner_keys() | {"tta_model", "tta_pipeline"}:
        if key != "cfg" and key in cfg:
            _check_node(cfg[key], key, known)
    _check_values(cfg, mode)
    _check_classes(cfg, known)
    if mode == "train":
        _check_validation(cfg, known)
        _check_crop(cfg)
    _check_forward(cfg, mode)


def _nearest(name: str, names: Iterable[str], cutoff: float = 0.7) -> str:
    """'; did you mean X?', or nothing where no name is near."""
    names = [str(n) for n in names]
    lower = {n.lower(): n for n in names}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=cutoff)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def _runner_keys() -> set[str]:
    return set(inspect.signature(Runner.__init__).parameters) - {"self"}


def check_options(cfg: Config, options: Mapping) -> None:
    """Look at the keys of `--cfg-options` before they are merged into `cfg`.

    Raises:
        LaunchError: for a key that nothing reads once the config is loaded.
    """
    legal = _runner_keys() | _READ_BY_TOOLS
    for key in options:
        top = key.split(".")[0]
        if top in legal:
            continue
        if top in cfg:
            raise LaunchError(
                f"--cfg-options {key}: the config reads {top!r} while it loads and nothing reads "
                "it afterwards; set the entries that are made from it (print_config.py shows them)"
            )
        raise LaunchError(f"--cfg-options {key}: nothing reads {top!r}{_nearest(top, legal)}")


def _imported_scope(cfg: Config) -> str:
    """The package whose types the config names without a prefix, imported."""
    scope = cfg.get("default_scope") or "mmseg"
    try:
        importlib.import_module(f"{scope}.registry")
    except ImportError as error:
        raise LaunchError(f"default_scope={scope!r}: {error}") from error
    return scope


def _known_types(scope: str) -> dict[str, list[Callable]]:
    """What mmengine and the package of the config's scope register: name to classes or functions.

    Other packages that are imported count too, without the parts that they register when asked.
    """
    known: dict[str, list[Callable]] = {}
    for root in vars(registries).values():
        if isinstance(root, Registry):
            for registry in (root, *root.children.values()):
                if registry.scope in ("mmengine", scope):
                    registry.import_from_location()
                for name, item in registry.module_dict.items():
                    known.setdefault(name, []).append(item)
    return known


def _check_node(node: object, key: str, known: Mapping[str, list[Callable]]) -> None:
    """Types and arguments of every dict below `key`."""
    name = key.rsplit(".", 1)[-1]
    if isinstance(node, (list, tuple)):
        for i, child in enumerate(node):
            if name in _LISTS_OF_DICTS and isinstance(child, str):
                raise LaunchError(f"{key}.{i}={child!r}: must be a dict(type=...), not a string")
            _check_node(child, f"{key}.{i}", known)
        return
    if not isinstance(node, dict):
        return
    if name in _KEYS_OF:
        _check_names(node, key, _KEYS_OF[name])
    elif name.endswith("_dataloader"):
        _check_names(node, key, _parameters(DataLoader)[0] | _DATALOADER_KEYS)
    elif key == "log_processor":
        _check_names(node, key, _parameters(LogProcessor)[0] | {"type"})
    if node.get("type") is not None and name not in _NO_REGISTRY:
        _check_typed(node, key, known)
    for child_name, child in node.items():
        _check_node(child, f"{key}.{child_name}", known)


def _check_typed(node: dict, key: str, known: Mapping[str, list[Callable]]) -> None:
    kind = node["type"]
    if isinstance(kind, str):
        found = known.get(kind.rsplit(".", 1)[-1])
        if found is None:
            if "." in kind:  # a path that mmengine imports
                return
            raise LaunchError(f"{key}.type={kind!r}: no registry has it{_nearest(kind, known)}")
    else:
        found = [kind]
    by_builder = next((v for n, v in _BUILDERS_KEYS.items() if n in key.split(".")[-2:]), set())
    legal = by_builder | {"type", "_scope_"}
    anything = False
    for item in found:
        names, more = _parameters(item)
        legal |= names
        anything |= more
    _check_names(node, key, legal, anything)


def _parameters(item: Callable) -> tuple[set[str], bool]:
    """The names that `item` takes as keywords, and whether it may take others."""
    names: set[str] = set()
    functions = [item]
    if inspect.isclass(item):
        functions = [vars(c)["__init__"] for c in item.__mro__[:-1] if "__init__" in vars(c)]
    for function in functions:
        rest = None
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                rest = parameter.name
            elif parameter.kind is not parameter.VAR_POSITIONAL:
                names.add(parameter.name)
        if rest is None:
            return names - {"self"}, False
        if not _hands_up(function, rest):
            break
    return names - {"self"}, True


def _hands_up(function: Callable, rest: str) -> bool:
    """Whether an __init__ gives its `**rest` to the class above and to nothing else."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return False
    call = rf"super\([^()]*\)\s*\.__init__\(.*?\*\*{rest}\b"
    return re.search(call, source, re.DOTALL) is not None and source.count(f"**{rest}") == 2


def _check_names(node: dict, key: str, legal: set[str], anything: bool = False) -> None:
    """Every key of `node` is legal; where `anything` is, none is nearly one that is named."""
    for name in node:
        if name in legal:
            continue
        nearest = _nearest(name, legal, cutoff=0.85 if anything else 0.7)
        if nearest or not anything:
            of = f" of {_type_name(node['type'])}" if "type" in node else ""
            names = ", ".join(sorted(legal - {"type", "_scope_"}))
            raise LaunchError(
                f"{key}.{name}={_short(node[name])}: {name!r} is no argument{of}{nearest} "
                f"(legal: {names})"
            )


def _type_name(kind: object) -> str:
    return kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= least


def _check_values(cfg: Config, mode: str) -> None:
    """Counts that must be positive integers, rates and seeds that must be numbers."""
    counts = [("train_cfg", n) for n in ("max_iters", "max_epochs", "val_interval")]
    counts += [(f"{split}_dataloader", "batch_size") for split in ("train", "val", "test")]
    counts += [("default_hooks.checkpoint", "interval"), ("default_hooks.logger", "interval")]
    for key, name in counts:
        node = _at(cfg, key)
        if name in node and not _is_count(node[name]):
            raise LaunchError(f"{key}.{name}={node[name]!r}: must be an integer above 0")
    for split in ("train", "val", "test"):
        workers = _at(cfg, f"{split}_dataloader").get("num_workers", 0)
        if not _is_count(workers, least=0):
            raise LaunchError(
                f"{split}_dataloader.num_workers={workers!r}: must be an integer, 0 or more"
            )
    for key, node in _typed(cfg.model, "model"):
        for name in ("channels", "in_channels"):
            values = node.get(name, 1)
            if not all(map(_is_count, values if isinstance(values, (list, tuple)) else [values])):
                raise LaunchError(f"{key}.{name}={values!r}: must be made of integers above 0")
    if "runner_type" in cfg and RUNNERS.get(cfg.runner_type) is None:
        legal = sorted(RUNNERS.module_dict)
        raise LaunchError(
            f"runner_type={cfg.runner_type!r}: must be of {', '.join(legal)}"
            f"{_nearest(cfg.runner_type, legal)}"
        )
    if cfg.get("log_level", "INFO") not in logging.getLevelNamesMapping():
        raise LaunchError(f"log_level={cfg.log_level!r}: must be DEBUG, INFO, WARNING or ERROR")
    if not isinstance(cfg.get("resume", False), bool):
        raise LaunchError(f"resume={cfg.resume!r}: must be True or False")
    _check_test_cfg(_at(cfg, "model.test_cfg"))
    wrapper = _at(cfg, "optim_wrapper")
    if not _is_count(wrapper.get("accumulative_counts", 1)):
        raise LaunchError(
            f"optim_wrapper.accumulative_counts={wrapper['accumulative_counts']!r}: must be an "
            "integer above 0"
        )
    if wrapper.get("clip_grad") and wrapper["clip_grad"].get("type", "norm") == "norm":
        legal = _parameters(nn.utils.clip_grad_norm_)[0] - {"parameters"}
        _check_names(wrapper["clip_grad"], "optim_wrapper.clip_grad", legal | {"type"})
    optimizer = _at(cfg, "optim_wrapper.optimizer")
    for name in ("lr", "weight_decay", "momentum"):
        value = optimizer.get(name, 0.0)
        if not _is_number(value) or not 0 <= value < float("inf"):
            raise LaunchError(
                f"optim_wrapper.optimizer.{name}={value!r}: must be a number, 0 or more"
            )
    seed = _at(cfg, "randomness").get("seed")
    if seed is not None and not (_is_count(seed, least=0) and seed < 2**32):
        raise LaunchError(f"randomness.seed={seed!r}: must be an integer from 0 to 2**32 - 1")
    for key, size in _sizes(cfg):
        values = size if isinstance(size, (list, tuple)) else (size,)
        if not all(_is_count(v) for v in values):
            raise LaunchError(f"{key}={size!r}: must be made of integers above 0")


def _check_test_cfg(test_cfg: Mapping) -> None:
    mode = test_cfg.get("mode", "whole")
    if mode not in ("whole", "slide"):
        raise LaunchError(f"model.test_cfg.mode={mode!r}: must be 'whole' or 'slide'")
    for name in ("crop_size", "stride"):
        if mode == "slide" and name not in test_cfg:
            raise LaunchError(f"model.test_cfg.{name}: mode='slide' needs it, as (height, width)")


def _sizes(cfg: Config) -> Iterator[tuple[str, object]]:
    """(key, value) of every crop size of the model's preprocessor and of the pipelines."""
    size = _at(cfg, "model.data_preprocessor").get("size")
    if size is not None:
        yield "model.data_preprocessor.size", size
    for key, step in _typed(_at(cfg, "train_dataloader"), "train_dataloader"):
        if step.get("crop_size") is not None:
            yield f"{key}.crop_size", step["crop_size"]


def _at(cfg: Config, key: str) -> Mapping:
    """The dict at a dotted key, empty where there is none."""
    node: object = cfg
    for name in key.split("."):
        node = node.get(name) if isinstance(node, (Config, Mapping)) else None
    return node if isinstance(node, Mapping) else {}


def _typed(node: object, key: str) -> Iterator[tuple[str, dict]]:
    """(key, dict) of every dict with a type at or below `node`."""
    if isinstance(node, (list, tuple)):
        for i, child in enumerate(node):
            yield from _typed(child, f"{key}.{i}")
    elif isinstance(node, Mapping):
        if node.get("type") is not None:
            yield key, node
        for name, child in node.items():
            yield from _typed(child, f"{key}.{name}")


def _classes(dataset: Mapping, known: Mapping[str, list[Callable]]) -> tuple[str, ...] | None:
    """The class names of a dataset config; None where it does not tell."""
    for inner in (dataset.get("dataset"), *(dataset.get("datasets") or ())):
        if isinstance(inner, Mapping):
            return _classes(inner, known)
    classes = (dataset.get("metainfo") or {}).get("classes")
    if classes is None:
        kind = dataset.get("type")
        items = known.get(kind.rsplit(".", 1)[-1], ()) if isinstance(kind, str) else (kind,)
        for item in items:
            classes = (getattr(item, "METAINFO", None) or {}).get("classes")
    return None if classes is None or isinstance(classes, str) else tuple(classes)


def _check_classes(cfg: Config, known: Mapping[str, list[Callable]]) -> None:
    """Every `num_classes` of the model is the number of classes of every split's dataset."""
    model = cfg.model.get("module", cfg.model)  # a wrapper for test-time augmentation
    heads = [
        (key, head["num_classes"])
        for key, head in _typed(model, "model")
        if "num_classes" in head and not key.endswith("backbone")
    ]
    for split in ("train", "val", "test"):
        dataset = _at(cfg, f"{split}_dataloader.dataset")
        classes = _classes(dataset, known)
        for key, number in heads:
            if not _is_count(number):
                raise LaunchError(f"{key}.num_classes={number!r}: must be an integer above 0")
            if classes is not None and number != len(classes):
                raise LaunchError(
                    f"{key}.num_classes={number}: {split}_dataloader's "
                    f"{_type_name(dataset.get('type'))} has {len(classes)} classes"
                )


def _metric_names(evaluator: object, known: Mapping[str, list[Callable]]) -> set[str] | None:
    """What mmseg's IoUMetric, or a subclass, will report; None for other metrics."""
    if stack_problem() is not None:
        return None
    from mmseg.evaluation import IoUMetric

    names: set[str] = set()
    for metric in evaluator if isinstance(evaluator, (list, tuple)) else [evaluator]:
        kind = metric.get("type") if isinstance(metric, Mapping) else None
        items = known.get(kind.rsplit(".", 1)[-1], ()) if isinstance(kind, str) else (kind,)
        if not any(inspect.isclass(i) and issubclass(i, IoUMetric) for i in items):
            return None
        prefix = f"{metric['prefix']}/" if metric.get("prefix") else ""
        for name in metric.get("iou_metrics", ["mIoU"]):
            reported = {
                "mIoU": ("mIoU", "mAcc"),
                "mDice": ("mDice", "mAcc"),
                "mFscore": ("mFscore", "mPrecision", "mRecall"),
            }.get(name)
            if reported is None:
                raise LaunchError(
                    f"val_evaluator.iou_metrics={name!r}: must be of mIoU, mDice, mFscore"
                    f"{_nearest(name, ('mIoU', 'mDice', 'mFscore'))}"
                )
            names |= {prefix + n for n in ("aAcc", *reported)}
    return names


def _check_validation(cfg: Config, known: Mapping[str, list[Callable]]) -> None:
    parts = {n: cfg.get(n) for n in ("val_dataloader", "val_cfg", "val_evaluator")}
    missing = [n for n, v in parts.items() if v is None]
    if missing and len(missing) < len(parts):
        there = [n for n in parts if n not in missing]
        raise LaunchError(
            f"config: {', '.join(missing)} is missing but {', '.join(there)} is set; a training "
            "without validation has none of the three"
        )
    reported = None if missing else _metric_names(cfg.val_evaluator, known)
    best = _at(cfg, "default_hooks.checkpoint").get("save_best")
    if best in (None, "auto"):
        return
    key = f"default_hooks.checkpoint.save_best={best!r}"
    if missing:
        raise LaunchError(f"{key}: there is no validation; set it to None")
    for name in best if isinstance(best, (list, tuple)) else [best]:
        if reported is not None and name not in reported:
            raise LaunchError(
                f"{key}: val_evaluator reports {', '.join(sorted(reported))}"
                f"{_nearest(str(name), reported)}"
            )


def _check_crop(cfg: Config) -> None:
    size = _at(cfg, "model.data_preprocessor").get("size")
    if size is None:
        return
    for key, crop in _sizes(cfg):
        height, width = (crop, crop) if isinstance(crop, int) else crop
        if height > size[0] or width > size[1]:
            raise LaunchError(
                f"{key}={crop}: larger than model.data_preprocessor.size={tuple(size)}, to which "
                "batches are padded; set both to one size"
            )


def _check_forward(cfg: Config, mode: str) -> None:
    """Channels, indices and batch statistics: mmseg's EncoderDecoder run on the meta device."""
    if stack_problem() is not None:
        return
    from mmseg.models import EncoderDecoder
    from mmseg.registry import MODELS

    config = cfg.model.get("module", cfg.model)
    kind = config.get("type")
    cls = MODELS.get(kind) if isinstance(kind, str) else kind
    if not (inspect.isclass(cls) and issubclass(cls, EncoderDecoder)):
        return
    model = _built_without_data(MODELS, config)
    if model is None:
        return
    size = config.get("data_preprocessor", {}).get("size") or (512, 512)
    batch = cfg.train_dataloader.get("batch_size", 1) if mode == "train" else 1
    if any(isinstance(m, nn.SyncBatchNorm) for m in model.modules()):
        batch *= max(get_dist_info()[1], int(os.environ.get("WORLD_SIZE", 1)))
    channels = config.get("backbone", {}).get("in_channels", 3)
    images = torch.empty(batch, channels, *size, device="meta")
    model.train(mode == "train")
    features = _run("model.backbone", model.extract_feat, images)
    if features is None:
        return
    for name in ("decode_head", "auxiliary_head"):
        heads = getattr(model, name, None)
        several = isinstance(heads, nn.ModuleList)
        for i, head in enumerate(heads if several else [heads] if heads is not None else []):
            key = f"model.{name}.{i}" if several else f"model.{name}"
            _check_head_inputs(key, head, features)
            _run(key, head, features)


def _built_without_data(models: Registry, config: Mapping) -> nn.Module | None:
    """The model on the meta device; None where it cannot be built there for a reason of its own."""
    try:
        with torch.device("meta"), DefaultScope.overwrite_default_scope("mmseg"):
            # A copy: mmseg's EncoderDecoder moves `pretrained` within the config that it is given.
            return models.build(copy.deepcopy(config))
    except (ValueError, TypeError, KeyError, AssertionError, IndexError) as error:
        raise LaunchError(f"model: {_one_line(error)}") from error
    except (RuntimeError, NotImplementedError):  # it reads values of tensors while it is built
        return None


def _run(key: str, module: Callable, inputs: object) -> object:
    try:
        with torch.no_grad():
            return module(inputs)
    except NotImplementedError:  # an operator without a meta form
        return None
    except (ValueError, TypeError, AssertionError, IndexError, KeyError) as error:
        raise LaunchError(f"{key}: {_one_line(error)}") from error
    except RuntimeError as error:
        if "meta" in str(error):
            return None
        raise LaunchError(f"{key}: {_one_line(error)}") from error


def _check_head_inputs(key: str, head: nn.Module, features: object) -> None:
    """`in_index` and `in_channels` of a head of mmseg against the maps that it will get."""
    index, channels = getattr(head, "in_index", None), getattr(head, "in_channels", None)
    if index is None or not isinstance(features, (list, tuple)):
        return
    indices = index if isinstance(index, (list, tuple)) else [index]
    for i in indices:
        if not -len(features) <= i < len(features):
            raise LaunchError(
                f"{key}.in_index={index}: the features are {len(features)}, "
                f"0 to {len(features) - 1}"
            )
    widths = [features[i].shape[1] for i in indices]
    expected = list(channels) if isinstance(channels, (list, tuple)) else [channels]
    if head.input_transform == "resize_concat":
        widths, expected = [sum(widths)], [sum(expected)]
    if widths != expected:
        raise LaunchError(
            f"{key}.in_channels={channels}: the features of in_index={index} have "
            f"{', '.join(map(str, widths))} channels"
        )


def _one_line(error: Exception) -> str:
    """The error's message; of a bare assertion, the line that asserts."""
    message = " ".join(str(error).split()).strip("'\"")
    return message or f"{traceback.extract_tb(error.__traceback__)[-1].line} does not hold"
