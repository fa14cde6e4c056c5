"""What the folder imports: it knows nothing of segmentation."""

import ast
import sys
from pathlib import Path

import mmseg_ext.durable

ALLOWED = {"torch", "numpy", "mmengine", "safetensors", "mmseg_ext"}
OWN = {"atomic_write", "durable", "errors", "upstream"}


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, also within functions."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_imports():
    files = list(Path(mmseg_ext.durable.__file__).parent.rglob("*.py"))
    names = {name for path in files for name in imported(path)}
    others = {n for n in names if n.partition(".")[0] not in ALLOWED | sys.stdlib_module_names}
    assert len(files) > 5 and not others
    own = {name.split(".")[1] for name in names if name.startswith("mmseg_ext.")}
    assert own == OWN
