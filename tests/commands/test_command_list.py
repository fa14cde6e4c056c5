"""`mmseg-ext` lists and runs the commands, and a file under `tools` starts the one of its name."""

import ast

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
    assert ast.unparse(line) == "from mmseg_ext.commands import start"
    expected = f"if __name__ == '__main__':\n    start('{path.stem}')"
    assert ast.unparse(start) == expected and path.stem in commands()


def test_the_list(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == sorted(commands())
    assert all(len(line) <= 120 for line in lines) and len(lines) <= 18


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
