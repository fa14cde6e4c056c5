"""mmengine's checkpoint loading, made safe: every scheme goes through `read_checkpoint`.

mmengine tries `weights_only=True` and, where that fails, unpickles after all; for addresses it
unpickles at once. Importing `mmseg_ext` registers the loaders below for every scheme in mmengine's
`CheckpointLoader`, which is where `load_from`, `--resume`, `init_cfg=dict(type='Pretrained')`,
`tools/test.py`, `mmseg.apis.init_model` and mmengine's inferencers get their files from. There is
no fallback. `.safetensors` files are read on the same paths.

A config inside a checkpoint is a program: mmengine's `Runner.resume` executes `meta['config']`, its
inferencers `meta['cfg']`. These texts are taken out of what is loaded.
"""

import io
import os
import re
from pathlib import Path
from urllib.parse import urlparse

import torch
from mmengine import dist
from mmengine.fileio import get_file_backend
from mmengine.runner.checkpoint import (
    CheckpointLoader,
    _get_mmengine_home,
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)

from mmseg_ext.checkpoint.errors import BrokenCheckpoint, UnsafeCheckpoint
from mmseg_ext.checkpoint.plain_data import from_plain
from mmseg_ext.checkpoint.safe_reading import read_checkpoint, read_torch


def as_mmengine(content: object, name: str) -> dict:
    """What mmengine expects of a loaded file: a mapping with `state_dict` and `meta`."""
    if not isinstance(content, dict):
        raise BrokenCheckpoint(f"{name}: holds {type(content).__name__}, not a mapping")
    if "state_dict" not in content:
        wraps = any(isinstance(content.get(key), dict) for key in ("model", "net"))
        if wraps:
            return content  # of a published repository: for its converter
        content = {"state_dict": content}
    if "message_hub" in content:
        content["message_hub"] = from_plain(content["message_hub"])
        content["message_hub"].get("runtime_info", {}).pop("cfg", None)
        content["message_hub"].get("resumed_keys", {}).pop("cfg", None)
    meta = content.get("meta")
    content["meta"] = meta = from_plain(meta) if isinstance(meta, dict) else {}
    for program in ("config", "cfg"):
        meta.pop(program, None)
    return content


def load_from_local(filename: str, map_location: object = None) -> dict:
    return as_mmengine(read_checkpoint(filename, map_location), filename)


def load_from_http(filename: str, map_location: object = None) -> dict:
    """Fetched once into torch's cache, by the first process; read from there."""
    folder = Path(torch.hub.get_dir(), "checkpoints")
    cached = folder / Path(urlparse(filename).path).name
    if dist.get_rank() == 0 and not cached.exists():
        folder.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(filename, str(cached), progress=False)
    dist.barrier()
    return load_from_local(str(cached), map_location)


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


def register_safe_loaders() -> None:
    """Put the safe loaders in the place of mmengine's, for every scheme that it knows."""
    for prefix, loader in _LOADERS.items():
        CheckpointLoader.register_scheme(prefix, loader, force=True)
