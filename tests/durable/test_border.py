"""What the folder imports: it knows nothing of segmentation."""

import ast
import sys
from pathlib import Path

import mmseg_ext.durable

ALLOWED = {"torch", "numpy", "mmengine", "safetensors", "mmseg_ext"}
OWN = {"atomic_write", "durable", "errors", "torch_versions", "upstream"}


def test_imports():
    """Also those within functions."""
    files, names = list(Path(mmseg_ext.durable.__file__).parent.rglob("*.py")), set()
    for node in (node for path in files for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    others = {n for n in names if n.partition(".")[0] not in ALLOWED | sys.stdlib_module_names}
    assert len(files) > 5 and not others
    own = {name.split(".")[1] for name in names if name.startswith("mmseg_ext.")}
    assert own == OWN
