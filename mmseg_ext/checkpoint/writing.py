"""Checkpoints and weights on disk: written whole or not at all."""

import hashlib
import io
import json
from pathlib import Path

import torch
from torch import Tensor

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.checkpoint.checksum import CHECKSUM, content_digest

SUFFIXES = (".pth", ".safetensors")  # of files of weights


class _RecordingFile:
    """A file that remembers the error of a failed write, which torch reports without its cause."""

    def __init__(self, file):
        self.file = file
        self.error: OSError | None = None

    def write(self, data) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_checkpoint(content: dict, path: str | Path) -> None:
    """Write tensors and plain containers with their checksum; an older `path` stays until then.

    Raises:
        NotWritten: for a full disk, a folder that cannot be written, ...
        TypeError: for content that is neither.
    """
    content = {**content, CHECKSUM: content_digest(content)}
    with atomic_write(path) as part, part.open("wb") as file:
        recording = _RecordingFile(file)
        try:
            torch.save(content, recording)
        except RuntimeError as error:
            raise recording.error or error from error


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
        content = {"state_dict": weights, "meta": meta}
        buffer = io.BytesIO()
        torch.save({**content, CHECKSUM: content_digest(content)}, buffer)
        data = buffer.getbuffer()
    if hash_in_name:
        path = path.with_stem(f"{path.stem}-{hashlib.sha256(data).hexdigest()[:8]}")
    with atomic_write(path) as part:
        part.write_bytes(data)
    return path
