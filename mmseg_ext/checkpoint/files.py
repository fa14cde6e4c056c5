"""Files of checkpoints and weights: read as data alone, written whole or not at all.

Reading is by torch's `weights_only`: a file that needs unpickling is refused.
"""

import contextlib
import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.checkpoint.logged_values import from_plain, safe_globals
from mmseg_ext.errors import CheckpointError

# Where published checkpoints keep the state dict: mmengine, RMT and timm, EANet and EMANet, EMA.
_WRAPPERS = ("state_dict", "model", "net", "state_dict_ema")


def read_checkpoint(
    path: str | Path, map_location: object = "cpu", mmap: bool | None = None
) -> object:
    """Everything in a `.safetensors` or torch file, and no code run for it.

    Tensors, plain containers, mmengine's `HistoryBuffer`s and NumPy's values are read. A
    `.safetensors` file gives what a torch file of the same weights would: `state_dict`, and `meta`
    with the `dataset_meta` that published files carry. With `mmap` tensors stay on the disk.

    Raises:
        FileNotFoundError: where there is no such file.
        CheckpointError: for a file that only unpickling could read.
        CheckpointError: for a truncated or damaged file.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint file")
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path, map_location)
        if not mmap and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if changed := archive.testzip():  # the CRC, which torch does not look at
                    raise ValueError(f"{changed} is not what was written")
        with as_data(path):
            content = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
            return from_plain(content)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file raises of every kind
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(f"{path}: is truncated or damaged ({reason})") from error


def _read_safetensors(path: Path, map_location: object) -> dict[str, dict]:
    from safetensors import safe_open
    from safetensors.torch import load_file

    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        described = (file.metadata() or {}).get("dataset_meta")
    meta = {} if described is None else {"dataset_meta": json.loads(described)}
    if map_location not in (None, "cpu"):
        tensors = {key: value.to(map_location) for key, value in tensors.items()}
    return {"state_dict": tensors, "meta": meta}


@contextlib.contextmanager
def as_data(name: str | Path) -> Iterator[None]:
    """Within the context `torch.load(weights_only=True)` takes what mmengine's Runner saves.

    Raises:
        CheckpointError: for a file, called `name` in the message, that holds other objects.
    """
    try:
        with _allowed(safe_globals()):
            yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{name}: holds objects other than tensors and plain containers; loading them "
            "could run code, so it is refused. If you trust its source, rewrite its weights once: "
            f"content = torch.load({str(name)!r}, weights_only=False), then "
            "torch.save({'state_dict': content['state_dict']}, 'NEW.pth')"
        ) from error


@contextlib.contextmanager
def _allowed(known: list) -> Iterator[None]:
    """`torch.serialization.safe_globals`, which torch 2.4 lacks."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals(known)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The name -> tensor mapping in a `.safetensors` or torch file, on the CPU.

    Raises:
        FileNotFoundError: where there is no such file.
        CheckpointError, CheckpointError: as `read_checkpoint` does.
        ValueError: for a file that holds no state dict.
    """
    return unwrap_state_dict(read_checkpoint(path), str(path))


def unwrap_state_dict(content: object, source: str) -> dict[str, Tensor]:
    """The state dict inside `content`, which is one, or wraps one under a usual key."""
    if isinstance(content, dict):
        for key in _WRAPPERS:
            if isinstance(content.get(key), dict):
                content = content[key]
                break
        if content and all(isinstance(v, Tensor) for v in content.values()):
            weights = {str(k).removeprefix("module."): v for k, v in content.items()}
            if len(weights) < len(content):
                raise ValueError(f"{source}: two names differ by the prefix 'module.' alone")
            return weights
    raise ValueError(f"{source}: holds no state dict (a mapping from names to tensors)")


SUFFIXES = (".pth", ".safetensors")  # of files of weights


def write_checkpoint(content: dict, path: str | Path) -> None:
    """Write `content` with `torch.save`; an older `path` stays until the new one is whole.

    Raises:
        NotWritten: for a full disk, a folder that cannot be written, ...
    """
    with atomic_write(path) as part:
        part.write_bytes(_saved(content))


def _saved(content: dict) -> memoryview:
    """The bytes of a torch file; written as a file, torch would hide why writing failed."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def check_suffix(path: str | Path) -> None:
    """That weights can be written as `path`.

    Raises:
        ValueError: for another suffix than `.pth` or `.safetensors`.
    """
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f"{path}: the file's name must end in {' or '.join(SUFFIXES)}")


def write_weights(
    weights: dict[str, Tensor],
    path: str | Path,
    dataset_meta: dict | None = None,
    hash_in_name: bool = False,
    about: dict[str, str] | None = None,
) -> Path:
    """Write weights alone, with the classes and the palette, as the suffix says; the path.

    A `.safetensors` has them, and what is told `about` the weights, as its metadata. Each tensor is
    written by itself, also where several share storage. With `hash_in_name` eight digits of the
    file's SHA-256 join its name.

    Raises:
        NotWritten: as `write_checkpoint`.
        ValueError: for another suffix than `.pth` or `.safetensors`.
    """
    path = Path(path)
    check_suffix(path)
    weights = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in weights.items()
    }
    if path.suffix == ".safetensors":
        from safetensors.torch import save

        described = {"format": "pt", **(about or {})}
        if dataset_meta is not None:
            described["dataset_meta"] = json.dumps(dataset_meta)
        data = save(weights, described)
    else:
        meta = dict(about or {})
        if dataset_meta is not None:
            meta["dataset_meta"] = dataset_meta
        data = _saved({"state_dict": _in_one_storage(weights), "meta": meta})
    if hash_in_name:
        path = path.with_stem(f"{path.stem}-{hashlib.sha256(data).hexdigest()[:8]}")
    with atomic_write(path) as part:
        part.write_bytes(data)
    return path


def _in_one_storage(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that share a storage for each dtype: torch.save adds 0.4 kB to each storage."""
    flat = {dtype: [] for dtype in {value.dtype for value in weights.values()}}
    for value in weights.values():
        flat[value.dtype].append(value.flatten())
    rest = {dtype: torch.cat(values) for dtype, values in flat.items()}
    packed = {}
    for name, value in weights.items():
        own, rest[value.dtype] = rest[value.dtype].tensor_split([value.numel()])
        packed[name] = own.view(value.shape)
    return packed
