"""`mmseg-ext` lists and runs the commands, and a file under `tools` starts the one of its name."""

import ast
import os
import subprocess
import sys

import pytest

from mmseg_ext.__main__ import main
from mmseg_ext.commands import commands
from tests.configs import CONFIGS

ROOT = CONFIGS.parent
TOOLS = sorted([*ROOT.glob("tools/**/*.py"), ROOT / "demo/image_demo.py"])


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.stem)
def test_a_tool_starts_the_command_of_its_name(path):
    """And nothing else: what a tool needs is imported once the stack was looked for."""
    documentation, line, start = ast.parse(path.read_text()).body
    assert isinstance(documentation.value.value, str)
    assert ast.unparse(line) == "from mmseg_ext_cli import start"
    expected = f"if __name__ == '__main__':\n    start('{path.stem}')"
    assert ast.unparse(start) == expected and path.stem in commands()


def test_the_list(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == sorted(commands())
    assert all(len(line) <= 120 for line in lines) and len(lines) <= 18


# Blocked, so that importing one of them fails; then the help of every command, in one process.
WITHOUT_WHAT_TAKES_SECONDS = """
import sys
sys.modules |= dict.fromkeys(("torch", "numpy", "mmengine", "mmcv", "mmseg"))
"""
HELP_OF_ALL = """
import importlib
import mmseg_ext_cli
mmseg_ext_cli.registers_later = True
from mmseg_ext.commands import commands
for name in commands():
    parser = importlib.import_module("mmseg_ext.commands." + name).parser()
    assert len(parser.format_help()) > 100, name
"""


def test_the_list_and_the_help_need_neither_torch_nor_the_stack(tmp_path):
    help_of_all = tmp_path / "help_of_all.py"
    help_of_all.write_text(HELP_OF_ALL)
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_WHAT_TAKES_SECONDS)
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    for command in (["-m", "mmseg_ext"], ["tools/train.py", "--help"], [help_of_all]):
        result = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert (result.returncode, result.stderr) == (0, "")


def test_an_unknown_command_is_a_usage_error(capsys):
    assert main(["modle_cost"]) == 2
    line = capsys.readouterr().err
    assert line == "mmseg_ext: there is no command 'modle_cost'; did you mean model_cost?\n"


def test_a_command_gets_the_rest_of_the_line(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mmseg-ext", "report", "none"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "none" in capsys.readouterr().err
