"""A checksum over the content of a checkpoint, kept inside it: one file, one rename."""

import hashlib

import torch
from torch import Tensor

CHECKSUM = "sha256"  # the key under which a checkpoint keeps the checksum of everything else
_LEAVES = (bool, int, float, complex, str, bytes, torch.dtype)


def content_digest(content: object) -> str:
    """SHA-256 over tensors (dtype, shape, bytes) and plain containers, in their order.

    Raises:
        TypeError: for an object that is neither.
    """
    digest = hashlib.sha256()
    _feed(digest, content)
    return digest.hexdigest()


def _feed(digest, value: object) -> None:
    if isinstance(value, Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(memoryview(data.numpy()))
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)};".encode())
        for key, item in value.items():
            _feed(digest, key)
            _feed(digest, item)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__} {len(value)};".encode())
        for item in value:
            _feed(digest, item)
    elif value is None or isinstance(value, _LEAVES):
        digest.update(f"{type(value).__name__} {value!r};".encode())
    else:
        raise TypeError(f"neither tensor nor plain container: {type(value).__name__}")
