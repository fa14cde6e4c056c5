"""Pretrained weights named by a config: there and readable, or one message, before data is read.

As in mmsegmentation, an address in a config (`open-mmlab://resnet101_v1c`, `https://...`) is the
wish to fetch it; nothing else is ever fetched. A file fetched once is taken from torch's cache
(`TORCH_HOME`, by default `~/.cache/torch/hub/checkpoints`).
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from mmengine.runner.checkpoint import CheckpointLoader

from mmseg_ext.checkpoint.safe_loading import SafeLoading
from mmseg_ext.errors import LaunchError

_CONNECT_SECONDS = 30.0


def is_address(value: str) -> bool:
    """Whether `value` is an address (`https://...`, `open-mmlab://...`), not a path."""
    return re.match(r"\w[\w.+-]*(:\w+)?://", value) is not None


def pretrained_entries(node: object, key: str) -> Iterator[tuple[str, str]]:
    """(config key, path or address) of the weights that building and initialising `node` reads.

    These are mmsegmentation's `pretrained='...'` and mmengine's
    `init_cfg=dict(type='Pretrained', checkpoint='...')`, at any depth.
    """
    if isinstance(node, dict):
        if isinstance(node.get("pretrained"), str):
            yield f"{key}.pretrained", node["pretrained"]
        if node.get("type") == "Pretrained" and isinstance(node.get("checkpoint"), str):
            yield f"{key}.checkpoint", node["checkpoint"]
        for name, child in node.items():
            yield from pretrained_entries(child, f"{key}.{name}")
    elif isinstance(node, (list, tuple)):
        for i, child in enumerate(node):
            yield from pretrained_entries(child, f"{key}.{i}")


@contextmanager
def _connection_timeout():
    previous = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_CONNECT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(previous)


def _remedy(key: str) -> str:
    if key == "checkpoint":
        return "name a local file"
    if key == "load_from":
        return "name a local file with --cfg-options load_from=FILE"
    # The entry that None removes: `model.pretrained`, or the whole `init_cfg` around `checkpoint`.
    entry = re.sub(r"(\.\d+)?\.checkpoint$", "", key)
    return (
        f"name a local file with --cfg-options {key}=FILE, or train from scratch with "
        f"--cfg-options {entry}=None"
    )


def require_weights(cfg: Config) -> None:
    """Make sure that every file of weights that training starts from is there.

    Raises:
        LaunchError: naming the config key, the value, the reason and what to do.
    """
    entries = list(pretrained_entries(cfg.model, "model"))
    if cfg.get("load_from"):
        entries.append(("load_from", cfg.load_from))
    for key, value in entries:
        require_file(key, value)


def require_file(key: str, value: str) -> None:
    """That the weights of the config's `key` are there: a local file, or an address.

    An address is fetched into torch's cache, by the first process alone.

    Raises:
        LaunchError: naming the key, the value, the reason and what to do.
    """
    if not is_address(value):
        if not Path(value).expanduser().is_file():
            raise LaunchError(f"{key}: there is no file {value!r}; {_remedy(key)}")
    elif int(os.environ.get("RANK", 0)) == 0:
        try:
            with _connection_timeout(), SafeLoading():
                CheckpointLoader.load_checkpoint(value, map_location="cpu")
        except Exception as error:  # one per scheme and backend: URLError, KeyError, ...
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise LaunchError(
                f"{key}: {value!r} cannot be fetched ({reason}); {_remedy(key)}"
            ) from error
