"""The order of imports in pyproject.toml: kept in the package, and able to fail."""

import shutil
import sys

import pytest

from tests.engine.runs import ROOT, copy_tree, run

pytest.importorskip("importlinter")  # the tests on the original packages have no linters
LINT = "from importlinter.cli import lint_imports_command as lint; lint()"
# A contract, and a file with a line that breaks it.
FAULTS = {
    "order": ("images/files.py", "from mmseg_ext import datasets"),
    "order within a function": ("engine/config.py", "def f(): import mmseg_ext.inference.models"),
    "order of two in a line": ("reports/page.py", "import mmseg_ext.datasets.shapes"),
    "order of a new folder": ("extra/__init__.py", ""),
    "guest": ("durable/work_dir.py", "import mmseg_ext.images.values"),
    "guest by another": ("checkpoint/files.py", "import mmseg.apis"),
    "operators": ("layers/programs.py", "import mmseg_ext.errors"),
}


def copied(folder):
    copy_tree(ROOT / "mmseg_ext", folder / "mmseg_ext", shutil.ignore_patterns(".mim", "*.pth"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder):
    return run(sys.executable, "-c", LINT, "--no-cache", folder=folder, PYTHONPATH=str(folder))


def test_no_import_points_up(tmp_path):
    result = lint(copied(tmp_path))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("fault", FAULTS)
def test_an_import_that_points_up_is_found(fault, tmp_path):
    name, line = FAULTS[fault]
    path = copied(tmp_path) / "mmseg_ext" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(f"\n{line}\n")
    result = lint(tmp_path)
    assert result.returncode == 1 and "1 broken" in result.stdout
