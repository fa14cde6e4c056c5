"""mmengine's checkpoint loading, made safe while it is asked for: `mmseg_ext.safe_loading`.

mmengine tries `weights_only=True` and, where that fails, unpickles after all; for addresses it
unpickles at once. Here the loaders below stand for every scheme in mmengine's `CheckpointLoader`,
which is where `load_from`, `--resume`, `init_cfg=dict(type='Pretrained')`, `tools/test.py`,
`mmseg.apis.init_model` and mmengine's inferencers get their files from. There is no fallback.
`.safetensors` files are read on the same paths.

A config inside a checkpoint is a program: mmengine's `Runner.resume` executes `meta['config']`, its
inferencers `meta['cfg']`. These texts are taken out of what is loaded, and so are the folders of
the checkpoints that it names, which mmengine's `CheckpointHook` would remove.
"""

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

import torch
from mmengine import dist
from mmengine.fileio import get_file_backend
from mmengine.runner import checkpoint as stack
from mmengine.runner.checkpoint import (
    _get_mmengine_home,
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)

from mmseg_ext.checkpoint.load_report import load_and_report, require_coverage
from mmseg_ext.checkpoint.safe_reading import read_checkpoint, read_torch
from mmseg_ext.errors import BrokenCheckpoint, UnsafeCheckpoint


def as_mmengine(content: object, name: str) -> dict:
    """What mmengine expects of a loaded file: a mapping with `state_dict` and `meta`."""
    if not isinstance(content, dict):
        raise BrokenCheckpoint(f"{name}: holds {type(content).__name__}, not a mapping")
    if "state_dict" not in content:
        wraps = any(isinstance(content.get(key), dict) for key in ("model", "net"))
        if wraps:
            return content  # of a published repository: for its converter
        content = {"state_dict": content}
    _mapping(content, "state_dict", name)
    meta = content["meta"] = _mapping(content, "meta", name)
    hub = _mapping(content, "message_hub", name)
    _mapping(hub, "log_scalars", name)
    info = _mapping(hub, "runtime_info", name)
    resumed = _mapping(hub, "resumed_keys", name)
    for mapping, program in ((meta, "config"), (meta, "cfg"), (info, "cfg"), (resumed, "cfg")):
        mapping.pop(program, None)
    for key in [key for key in info if str(key).startswith(("best_ckpt", "last_ckpt"))]:
        info[key] = None if info[key] is None else Path(str(info[key])).name
    return content


def _mapping(content: dict, key: str, name: str) -> dict:
    part = content.get(key)
    if not isinstance(part, dict | None):
        raise BrokenCheckpoint(f"{name}: its {key} is {type(part).__name__}, not a mapping")
    return {} if part is None else part


def load_from_local(filename: str, map_location: object = None) -> dict:
    return as_mmengine(read_checkpoint(filename, map_location), filename)


def load_from_http(filename: str, map_location: object = None) -> dict:
    """Fetched once into torch's cache, by the first process; read from there."""
    cached = _in_cache(filename)
    if dist.get_rank() == 0 and not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(filename, str(cached), progress=False)
    dist.barrier()
    return load_from_local(str(cached), map_location)


def _in_cache(address: str) -> Path:
    """Where the file of `address` lies, or will: two addresses never share one.

    A file that torch has fetched is taken where the digest in its name is its own.
    """
    folder = Path(torch.hub.get_dir(), "checkpoints")
    name = Path(urlparse(address).path).name
    digest = re.search(r"-([0-9a-f]{8,})\.", name)
    if digest and (folder / name).is_file():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found.startswith(digest[1]):
            return folder / name
    return folder / f"{hashlib.sha256(address.encode()).hexdigest()[:12]}-{name}"


def load_from_storage(filename: str, map_location: object = None) -> dict:
    backend = get_file_backend(filename, backend_args={"backend": "petrel"})
    content = read_torch(io.BytesIO(backend.get(filename)), filename, map_location)
    return as_mmengine(content, filename)


def load_from_pavi(filename: str, map_location: object = None) -> dict:
    raise UnsafeCheckpoint(f"{filename}: pavi:// is not supported; name a local file")


def load_from_torchvision(filename: str, map_location: object = None) -> dict:
    return load_from_http(get_torchvision_models()[_name(filename)], map_location)


def load_from_openmmlab(filename: str, map_location: object = None) -> dict:
    name = _name(filename)
    address = get_external_models()[get_deprecated_model_names().get(name, name)]
    if re.match(r"https?://", address):
        return load_from_http(address, map_location)
    return load_from_local(os.path.join(_get_mmengine_home(), address), map_location)


def load_from_mmcls(filename: str, map_location: object = None) -> dict:
    """The backbone of a classifier."""
    weights = load_from_http(get_mmcls_models()[_name(filename)], map_location)["state_dict"]
    prefix = "backbone."
    backbone = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    return {"state_dict": backbone, "meta": {}}


def _name(address: str) -> str:
    return address.split("://", 1)[1]


_LOADERS = {
    "": load_from_local,
    "http://": load_from_http,
    "https://": load_from_http,
    "pavi://": load_from_pavi,
    r"(\S+\:)?s3://": load_from_storage,
    r"(\S+\:)?petrel://": load_from_storage,
    "modelzoo://": load_from_torchvision,
    "torchvision://": load_from_torchvision,
    "open-mmlab://": load_from_openmmlab,
    "openmmlab://": load_from_openmmlab,
    "mmcls://": load_from_mmcls,
}


class SafeLoading(contextlib.AbstractContextManager):
    """See `mmseg_ext.safe_loading`."""

    _asking: list["SafeLoading"] = []
    _before: tuple[dict, Callable]

    def __init__(self, min_backbone_share: float | None = None):
        self._demand = contextlib.ExitStack()
        self._demand.enter_context(require_coverage(min_backbone_share))
        if not self._asking:
            loaders = stack.CheckpointLoader._schemes
            SafeLoading._before = (loaders, stack.load_state_dict)
            stack.CheckpointLoader._schemes = dict(loaders)
            for prefix, loader in _LOADERS.items():
                stack.CheckpointLoader.register_scheme(prefix, loader, force=True)
            stack.load_state_dict = load_and_report
        self._asking.append(self)

    def __exit__(self, *error) -> None:
        self._demand.close()
        self._asking.remove(self)
        if not self._asking:
            stack.CheckpointLoader._schemes, stack.load_state_dict = self._before
