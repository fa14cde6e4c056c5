"""mmengine's checkpoint loading without running code, and with a check of how much it fills.

Everything that mmengine and its siblings load passes `CheckpointLoader.load_checkpoint` and
`load_state_dict`: `load_from`, `--resume`, `init_cfg=dict(type='Pretrained')`, `init_model` and the
inferencers. `safe_loading` replaces these two functions: by `load_checkpoint`, which reads files
with `read_checkpoint`, and by `load_and_report`, which compares the weights with the model. Other
calls of `torch.load`, as in a hook of your own, are unchanged.
"""

import contextlib
import logging
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine import dist
from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import checkpoint as mmengine_checkpoint
from mmengine.runner.checkpoint import CheckpointLoader, load_state_dict
from torch import Tensor, nn

from mmseg_ext.checkpoint.files import read_checkpoint, read_torch_file, terms_of
from mmseg_ext.errors import CheckpointError, LaunchError, join_names

_AUXILIARY = "auxiliary_head"  # heads that only training uses
_load_address = CheckpointLoader.load_checkpoint


# The arguments of the blocks of `safe_loading` around.
_settings: dict[str, Any] = {"min_backbone_share": 0.9, "entire_model": False, "terms": None}


@contextlib.contextmanager
def safe_loading(
    min_backbone_share: float | None = None,
    entire_model: bool | None = None,
    terms: dict[str, str] | None = None,
) -> Iterator[None]:
    """Let mmengine, mmsegmentation and their siblings load weights without running code from them.

    Use it as a context manager. Within the block it replaces functions of mmengine, for all
    threads; other calls of `torch.load` are unchanged. Files must contain only tensors, plain
    containers and mmengine's logged numbers. Each load logs how much of the model it fills, and
    refuses weights that are not finite or fill too little of the backbone.

    `DurableRunner`, `train`, `test`, `get_model` and the commands use it automatically.

    Args:
        min_backbone_share: the least share of a backbone's values, 0 to 1; 0.9 by default. None is
            the argument of the block around, here and below.
        entire_model: weights must fill everything but the auxiliary heads, as testing needs it.
        terms: collects the license and the training data of the files that are loaded.

    Raises:
        LaunchError: for a share outside 0 to 1.
    """
    global _settings
    outer_settings = _settings
    inner_settings = dict(outer_settings)
    if min_backbone_share is not None:
        if not isinstance(min_backbone_share, int | float) or not 0 <= min_backbone_share <= 1:
            key = f"min_backbone_share={min_backbone_share!r}"
            raise LaunchError(f"{key}: not a number from 0 to 1; set one")
        inner_settings["min_backbone_share"] = min_backbone_share
    if entire_model is not None:
        inner_settings["entire_model"] = entire_model
    if terms is not None:
        inner_settings["terms"] = terms
    outer_reader = vars(CheckpointLoader)["load_checkpoint"]  # with its `staticmethod`
    outer_loader = mmengine_checkpoint.load_state_dict
    _settings = inner_settings
    CheckpointLoader.load_checkpoint = staticmethod(load_checkpoint)
    mmengine_checkpoint.load_state_dict = load_and_report
    try:
        yield
    finally:
        _settings = outer_settings
        CheckpointLoader.load_checkpoint = outer_reader
        mmengine_checkpoint.load_state_dict = outer_loader


def unwrap_model(module: nn.Module) -> nn.Module:
    """Return the model inside wrappers for several processes and for test-time augmentation."""
    while is_model_wrapper(module) or isinstance(module, BaseTTAModel):
        module = module.get_submodule("module")
    return module


def _listed(names: list[str]) -> str:
    return join_names(names, 4) or "nothing"


def _backbone_prefix(module: nn.Module) -> str:
    """Return the prefix of the backbone's names; '' if the module has no backbone."""
    return "backbone." if isinstance(getattr(module, "backbone", None), nn.Module) else ""


def _fills(given: object, own: Tensor) -> bool:
    return isinstance(given, Tensor) and given.shape == own.shape


def check_coverage(module: nn.Module, state_dict: Mapping[str, Tensor]) -> str:
    """Return one line about how much of the module `state_dict` fills.

    An entry fills a value with its name and shape. Counters of batches are ignored.

    Raises:
        CheckpointError: if it fills less than `safe_loading` demands of the backbone (of the
            module, if it has no backbone), or of everything that testing uses.
    """
    module = unwrap_model(module)
    own: dict[str, Tensor] = {}
    left = []
    for name, value in module.state_dict().items():
        if "num_batches_tracked" in name:
            continue
        own[name] = value
        if not _fills(state_dict.get(name), value):
            left.append(name)

    def share(prefix: str) -> float:
        sizes = {name: value.numel() for name, value in own.items() if name.startswith(prefix)}
        missing = sum(sizes.get(name, 0) for name in left)
        return 1 - missing / max(sum(sizes.values()), 1)

    line = f"weights fill {share(''):.1%} of {type(module).__name__}"
    prefix = _backbone_prefix(module)
    if prefix:
        line += f", {share(prefix):.1%} of its backbone"
    if share(prefix) < _settings["min_backbone_share"]:
        raise CheckpointError(
            f"{line}, less than {_settings['min_backbone_share']:.0%}; not filled: "
            f"{_listed([name for name in left if name.startswith(prefix)])}; the file has "
            f"{_listed(sorted(map(str, state_dict)))}; to use them anyway, add --cfg-options "
            "min_backbone_share=0, or mmseg_ext.safe_loading(min_backbone_share=0) in Python"
        )
    needed = []
    for name in left:
        given = state_dict.get(name)
        problem = "missing"
        if isinstance(given, Tensor):
            problem = f"{tuple(given.shape)} for {tuple(own[name].shape)}"
        if not name.startswith(_AUXILIARY):
            needed.append(f"{name} ({problem})")
    if _settings["entire_model"] and needed:
        raise CheckpointError(
            f"the weights leave {len(needed)} entries of {type(module).__name__} randomly "
            f"initialized: {_listed(needed)}; use weights of the same model and classes"
        )
    if left:
        line += f"; not filled: {_listed(left)}"
    return line


def random_parts(module: nn.Module, state_dict: Mapping[str, Tensor]) -> list[str]:
    """Return the parts of the backbone whose matrices and kernels are all missing in `state_dict`.

    Return nothing if it fills no part at all. Norms do not count: they do not start at random
    values, and a segmentor adds some to a classifier's backbone.
    """
    module = unwrap_model(module)
    prefix = _backbone_prefix(module)
    filled: dict[str, bool] = {}  # by part: whether any of its values are
    for name, value in module.state_dict().items():
        if name.startswith(prefix) and value.ndim > 1:
            part = prefix + name.removeprefix(prefix).split(".")[0]
            filled[part] = filled.get(part, False) or _fills(state_dict.get(name), value)
    if not any(filled.values()):
        return []
    return [part for part in filled if not filled[part]]


def check_finite(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if infinities or NaNs would replace finite values."""
    bad = []
    for name, value in unwrap_model(module).state_dict().items():
        given = state_dict.get(name)
        if not isinstance(given, Tensor) or given.isfinite().all():
            continue
        if value.isfinite().all():
            bad.append(name)
    if bad:
        raise CheckpointError(
            f"the weights are not finite: {_listed(bad)}; the training run diverged: use an "
            "earlier checkpoint"
        )


def fit_input_channels(weight: Tensor, channels: int) -> Tensor:
    """Return a first convolution (C, 3, h, w) for images of `channels`, (C, channels, h, w).

    This is timm's rule: the sum for one channel, which is what a gray image as R, G and B gives,
    and otherwise the repeated weights times 3 / channels, which keeps their sum.
    """
    weight = weight.float()  # from a file of 16 bits
    if channels == 1:
        return weight.sum(1, keepdim=True)
    return weight.repeat(1, -(-channels // 3), 1, 1)[:, :channels] * (3 / channels)


def fit_first_convolution(
    module: nn.Module, state_dict: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Return `state_dict` with weights of three channels for a model of other images."""
    fitted = {}
    for name, own in unwrap_model(module).state_dict().items():
        given = state_dict.get(name)
        if not isinstance(given, Tensor) or not given.ndim == own.ndim == 4:
            continue
        takes_other_images = given.shape[1] == 3 != own.shape[1]
        if takes_other_images and given[:, 0].shape == own[:, 0].shape:
            fitted[name] = fit_input_channels(given, own.shape[1])
            text = f"{name}: weights for 3 channels, fitted to {own.shape[1]}"
            print_log(text, logger="current")
    if not fitted:
        return state_dict
    return {**state_dict, **fitted}


def load_and_report(
    module: nn.Module, state_dict: Mapping[str, Tensor], strict: bool = False, logger=None
) -> None:
    """Check `state_dict`, load it as mmengine does, and log how much of the module it fills.

    mmengine loads what fits and mentions the rest among other warnings, so a backbone can stay at
    random values unnoticed.
    """
    own = unwrap_model(module).state_dict()
    headless = bool(own) and all(name.startswith("backbone.") for name in own)
    if headless and not any(str(name).startswith("backbone.") for name in state_dict):
        # mmpretrain's classifier around a backbone that returns logits has no other weights, and
        # `convert` writes the backbone's names.
        state_dict = {f"backbone.{name}": value for name, value in state_dict.items()}
    if not _settings["entire_model"]:  # a test needs the weights of this model
        state_dict = fit_first_convolution(module, state_dict)
    check_finite(module, state_dict)
    load_state_dict(module, state_dict, strict, logger)  # backbones refuse published names here
    print_log(check_coverage(module, state_dict), logger="current")
    random = random_parts(module, state_dict)
    if random:
        unused = _listed(sorted(set(state_dict) - set(own)))
        message = (
            f"{_listed(random)}: random, while the weights fill other parts of the backbone; use "
            f"weights of the same variant (the file also has {unused})"
        )
        print_log(message, logger="current", level=logging.WARNING)


def load_checkpoint(filename: str, map_location: Any = None, logger: Any = "current") -> Any:
    """Load a local file or an address as mmengine's `CheckpointLoader`, without running code.

    Configs in the file are removed: they are Python programs, which mmengine's `Runner.resume` and
    its inferencers would execute.
    """
    if Path(filename).expanduser().is_file():
        print_log(f"Loads checkpoint from {filename}", logger=logger)
        content = read_checkpoint(filename, map_location)
    else:
        try:
            content = _fetch(filename, map_location, logger)
        except FileNotFoundError as error:  # not an address either
            if dist.get_world_size() == 1:
                raise
            raise CheckpointError(
                f"{filename}: process {dist.get_rank()} on {platform.node()} has no such file; "
                "every machine reads the checkpoint: use a shared folder, or copy it to the same "
                "path"
            ) from error
    weights = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise CheckpointError(f"{filename}: contains no state dict")
    collected = _settings["terms"]
    if collected is not None:
        for key, text in terms_of(content).items():
            if not collected.get(key):
                collected[key] = text
            elif text not in collected[key]:  # of another file
                collected[key] += f"; {text}"
    if weights is not content:
        if not isinstance(content.get("meta"), dict):
            content["meta"] = {}  # which `init_model` expects
        hub = content.get("message_hub") or {}
        for part in (content["meta"], hub.get("runtime_info") or {}):
            for key in ("cfg", "config"):
                part.pop(key, None)
    return content


def _fetch(address: str, map_location: Any, logger: Any) -> Any:
    """Load an address by mmengine, with `torch.load` replaced for the time of the call.

    mmengine's loaders and `torch.hub` call it without `weights_only`.
    """

    def read(file: Any, map_location: Any = None, **settings: object) -> Any:
        if isinstance(file, (str, Path)):
            return read_checkpoint(file, map_location)
        return read_torch_file(file, address, map_location)

    original, torch.load = torch.load, read
    try:
        return _load_address(address, map_location, logger)
    finally:
        torch.load = original
