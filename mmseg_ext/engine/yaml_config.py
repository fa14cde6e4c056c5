"""Configs in YAML: looked through before mmengine reads them.

mmengine reads YAML with the loader that makes any Python object and calls any function that a tag
names. A config needs neither, so that what the safe loader does not read is refused; and so is a
document that a few kilobytes of aliases make endless or gigabytes large.
"""

from pathlib import Path

import yaml

SUFFIXES = (".yml", ".yaml")
_MOST_BYTES = 2**20
_MOST_NODES = 10**6  # with the aliases written out


def require_plain_yaml(path: str | Path) -> None:
    """The YAML file at `path`, and each that it names as `_base_`, holds plain values alone.

    Raises:
        ValueError: for a tag, a document that is too large or holds itself, and for what is no
            YAML.
    """
    path = Path(path)
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path}: a config of more than {_MOST_BYTES // 2**20} MiB is none")
    text = path.read_text(encoding="utf-8")
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is not None:
            _size(root, {})
        settings = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    bases = settings.get("_base_", []) if isinstance(settings, dict) else []
    for base in [bases] if isinstance(bases, str) else bases:
        if str(base).endswith(SUFFIXES):
            require_plain_yaml(path.parent / str(base))


def _size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Nodes below `node`, one that aliases repeat counted each time."""
    if id(node) in known:
        if known[id(node)] is None:
            raise ValueError("the document holds itself")
        return known[id(node)]
    known[id(node)] = None
    size = 1
    if isinstance(node, yaml.CollectionNode):
        for item in node.value:
            parts = item if isinstance(item, tuple) else (item,)
            size += sum(_size(part, known) for part in parts)
            if size > _MOST_NODES:
                raise ValueError(f"more than {_MOST_NODES:,} values with its aliases written out")
    known[id(node)] = size
    return size
