"""Reading a checkpoint. No path here runs code of the file: one that needs it is refused."""

import io
import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from mmseg_ext.checkpoint.checksum import CHECKSUM, content_digest
from mmseg_ext.checkpoint.pickled_values import stand_ins
from mmseg_ext.checkpoint.plain_data import check_size, from_plain
from mmseg_ext.errors import BrokenCheckpoint, UnsafeCheckpoint

# Where published checkpoints keep the state dict: mmengine, RMT and timm, EANet and EMANet, EMA.
_WRAPPERS = ("state_dict", "model", "net", "state_dict_ema")
_ARCHIVE = b"PK\x03\x04"  # the first bytes of a torch file


def read_checkpoint(path: str | Path, map_location: object = "cpu") -> object:
    """Everything in a `.safetensors` or torch file, and no code run for it.

    Read are tensors, plain containers, and mmengine's `HistoryBuffer`s and NumPy values as data.
    A `.safetensors` file gives what a torch file of the same weights would: `state_dict`, and
    `meta` with the `dataset_meta` that published files carry. Where a torch file carries a
    checksum (ours do), the content is compared with it.

    Raises:
        FileNotFoundError: where there is no such file.
        UnsafeCheckpoint: for a file that only unpickling could read.
        BrokenCheckpoint: for a truncated or changed file, and one that would fill the memory.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path, map_location)
    with path.open("rb") as file:
        return read_torch(file, str(path), map_location)


def _read_safetensors(path: Path, map_location: object) -> dict[str, dict]:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            described = (file.metadata() or {}).get("dataset_meta")
        meta = {} if described is None else {"dataset_meta": json.loads(described)}
    except (SafetensorError, json.JSONDecodeError, RecursionError) as error:
        raise BrokenCheckpoint(f"{path}: not a readable safetensors file ({error})") from error
    if map_location not in (None, "cpu"):
        tensors = {key: value.to(map_location) for key, value in tensors.items()}
    return {"state_dict": tensors, "meta": meta}


def read_torch(file: BinaryIO, name: str, map_location: object = "cpu") -> object:
    """The content of a torch file, named `name` in messages; see `read_checkpoint`."""
    size = _check_archive(file, name)
    try:
        with stand_ins():
            content = torch.load(file, map_location=map_location, weights_only=True)
        check_size(content, size)
        if isinstance(content, dict) and CHECKSUM in content:
            expected = content.pop(CHECKSUM)
            if content_digest(content) != expected:
                raise ValueError("the content does not have the checksum it was given")
        return from_plain(content)
    except pickle.UnpicklingError as error:
        # torch's message names what it refused; a file that is no pickle has no such thing.
        if not re.search("GLOBAL|Unsupported|call reduce|create new object", str(error)):
            raise BrokenCheckpoint(f"{name}: not a readable torch file ({_line(error)})") from error
        raise UnsafeCheckpoint(
            f"{name}: holds objects other than tensors and plain containers; loading them "
            "could run code, so it is refused. If you trust its source, rewrite its weights once: "
            f"content = torch.load({name!r}, weights_only=False), then "
            "torch.save({'state_dict': content['state_dict']}, 'NEW.pth')"
        ) from error
    except Exception as error:  # a damaged or crafted pickle raises of every kind
        raise BrokenCheckpoint(f"{name}: not a readable torch file ({_line(error)})") from error


def _check_archive(file: BinaryIO, name: str) -> int:
    """The file's size; a torch archive has its end and stores its members as they are."""
    start = file.read(len(_ARCHIVE))
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if not start or not _ARCHIVE.startswith(start):
        return size  # torch's older format, or none of its formats
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise BrokenCheckpoint(f"{name}: is truncated ({size} bytes)") from error
    finally:
        file.seek(0)
    stored = all(m.compress_type == zipfile.ZIP_STORED for m in members)
    if not stored or sum(m.file_size for m in members) > size:
        raise BrokenCheckpoint(f"{name}: not an archive as torch writes it: compressed members")
    return size


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The name -> tensor mapping in a `.safetensors` or torch file, on the CPU.

    Raises:
        FileNotFoundError: where there is no such file.
        UnsafeCheckpoint, BrokenCheckpoint: as `read_checkpoint` does.
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
            return {str(k).removeprefix("module."): v for k, v in content.items()}
    raise ValueError(f"{source}: holds no state dict (a mapping from names to tensors)")
