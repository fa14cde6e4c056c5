"""The config of a finished run, read as data: nothing that stands in the file is executed.

A work directory may come from anyone, and a config is a Python program, which mmengine runs to read
it. What a run writes beside its scalars is the resolved config: assignments of literals and
`dict(...)`. That much is read here, and of the types that it names those are built that this
process already knows: mmengine would import any module for a name that it does not find.
"""

import ast
import math
from collections.abc import Iterator
from pathlib import Path

from mmengine import registry as registries
from mmengine.config import Config

_MOST_BYTES = 8 * 2**20
_NAMED = {"inf": math.inf, "nan": math.nan}


def read_config(path: Path) -> Config:
    """The resolved config at `path`.

    Raises:
        ValueError: for one that holds more than literals and `dict(...)`, with the line.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path}: a config of more than {_MOST_BYTES // 2**20} MiB is none")
    try:
        statements = ast.parse(path.read_text(encoding="utf-8")).body
        settings = dict(map(_assignment, statements))
        return Config(settings, filename=str(path))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path}: is no config: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: a resolved config is read as data: {error}") from error


def _assignment(statement: ast.stmt) -> tuple[str, object]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, _value(value)
    raise ValueError(f"line {statement.lineno} is no assignment of a value")


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Set(elts=items):
            return {_value(item) for item in items}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(k): _value(v) for k, v in zip(keys, values, strict=True)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=items) if all(
            item.arg is not None for item in items
        ):
            return {item.arg: _value(item.value) for item in items}
        case ast.Call(func=ast.Name(id="dict"), args=[ast.Dict() as items], keywords=[]):
            return _value(items)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id=name)) if name in _NAMED:
            return -_NAMED[name]
        case ast.Name(id=name) if name in _NAMED:
            return _NAMED[name]
    raise ValueError(f"line {node.lineno} holds {ast.unparse(node)[:60]!r}")


def require_known_types(settings: object, source: str) -> None:
    """Every `type` in settings that are to be built is registered in this process.

    Raises:
        ValueError: for one that is not.
    """
    known = {name for registry in _registries() for name in registry.module_dict}
    scopes = {"", *(registry.scope for registry in _registries())}
    for kind in _types(settings):
        scope, _, name = kind.rpartition(".") if isinstance(kind, str) else ("", "", None)
        if name not in known or scope not in scopes:
            raise ValueError(
                f"{source}: names the type {kind!r}, which is not registered here; where it is "
                "your own, name the module that registers it with --import"
            )


def _registries() -> Iterator[registries.Registry]:
    pending = [r for r in vars(registries).values() if isinstance(r, registries.Registry)]
    while pending:
        registry = pending.pop()
        yield registry
        pending += registry.children.values()


def _types(node: object) -> Iterator[object]:
    if isinstance(node, dict):
        if "type" in node:
            yield node["type"]
        if "_scope_" in node:  # mmengine imports its registry
            yield f"{node['_scope_']}.{node.get('type')}"
        node = list(node.values())
    if isinstance(node, list | tuple):
        for item in node:
            yield from _types(item)
