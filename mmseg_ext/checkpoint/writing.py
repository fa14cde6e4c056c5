"""Checkpoints and weights on disk: written whole or not at all."""

import hashlib
import io
import json
from pathlib import Path

import torch
from torch import Tensor

from mmseg_ext.atomic_write import atomic_write

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
) -> Path:
    """Write weights alone, with the classes and the palette, as the suffix says; the path.

    A `.safetensors` has them as its metadata. Each tensor is written by itself, also where several
    share storage. With `hash_in_name` eight digits of the file's SHA-256 join its name.

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

        described = {"format": "pt"}
        if dataset_meta is not None:
            described["dataset_meta"] = json.dumps(dataset_meta)
        data = save(weights, described)
    else:
        meta = {} if dataset_meta is None else {"dataset_meta": dataset_meta}
        data = _saved({"state_dict": weights, "meta": meta})
    if hash_in_name:
        path = path.with_stem(f"{path.stem}-{hashlib.sha256(data).hexdigest()[:8]}")
    with atomic_write(path) as part:
        part.write_bytes(data)
    return path
