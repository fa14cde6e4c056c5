"""`mmseg-ext` lists and runs the commands; a file in `tools` starts the command of its name."""

import ast
import errno
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

from mmseg_ext import __version__
from mmseg_ext.commands import COMMANDS, env, main, report_error, run, start, train
from mmseg_ext.errors import RESUME_HINT, LaunchError, RunError
from tests.configs import CONFIGS
from tests.messages import lines_with
from tests.test_registration import run_without

ROOT = CONFIGS.parent
TOOLS = sorted([*ROOT.glob("tools/**/*.py"), ROOT / "demo/image_demo.py"])


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.stem)
def test_a_tool_starts_the_command_of_its_name(path):
    """And imports nothing that would delay `--help`."""
    documentation, line, call = ast.parse(path.read_text()).body
    assert isinstance(documentation.value.value, str)
    assert ast.unparse(line) == "from mmseg_ext.commands import start"
    expected = f"if __name__ == '__main__':\n    start('{path.stem}')"
    assert ast.unparse(call) == expected and path.stem in COMMANDS


def printed_by(words: list[str], status: int, monkeypatch, capsys) -> str:
    monkeypatch.setattr("sys.argv", ["mmseg-ext", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_the_list_and_the_version(monkeypatch, capsys):
    lines = printed_by([], 0, monkeypatch, capsys).splitlines()
    assert [line.split()[0] for line in lines[-len(COMMANDS) :]] == sorted(COMMANDS)
    assert all(len(line) <= 120 for line in lines)
    assert printed_by(["--version"], 0, monkeypatch, capsys) == f"{__version__}\n"


HELP_OF_ALL = """
import importlib
from mmseg_ext.commands import COMMANDS
for name in COMMANDS:
    parser = importlib.import_module("mmseg_ext.commands." + name).parser()
    assert len(parser.format_help()) > 100, name
"""


def test_help_needs_neither_torch_nor_the_stack(tmp_path):
    help_of_all = tmp_path / "help_of_all.py"
    help_of_all.write_text(HELP_OF_ALL)
    slow = ("torch", "numpy", "mmengine", "mmcv", "mmseg")
    for command in ("-m mmseg_ext", f"{ROOT}/tools/train.py --help", str(help_of_all)):
        result = run_without(slow, tmp_path, *command.split())
        assert (result.returncode, result.stderr) == (0, "")


def test_a_command_gets_the_rest_of_the_line(monkeypatch, capsys):
    """An unknown one is a usage error, as is an option without a value."""
    assert "model_cost" in printed_by(["modle_cost"], 2, monkeypatch, capsys)
    words = ["check_dataset", "ea_r18_shapes", "--cfg-options", "crop_size"]
    assert lines_with(printed_by(words, 2, monkeypatch, capsys), "KEY=VALUE", "'crop_size'")
    monkeypatch.setattr("logging.raiseExceptions", True)  # restored after the test
    assert "none" in printed_by(["report", "none", "--out", "x"], 1, monkeypatch, capsys)
    assert "WORK_DIR" in printed_by(["report", "--help"], 0, monkeypatch, capsys)


def test_an_unforeseen_error_is_a_traceback_and_one_line(monkeypatch, capsys):
    for error in (ValueError("a shape\n of another\tworld"), OSError("a shape of another world")):
        monkeypatch.setattr(env, "main", Mock(side_effect=error))
        assert run("env") == 1
        *trace, line = capsys.readouterr().err.splitlines()
        assert trace[0].startswith("Traceback")
        assert line == f"mmseg_ext: env failed: {type(error).__name__}: a shape of another world"


@pytest.mark.parametrize(
    ("main", "status", "printed"),
    [
        (Mock(return_value=3), 3, ""),
        (Mock(side_effect=KeyboardInterrupt), 130, "mmseg_ext: interrupted\n"),
        (lambda argv: signal.raise_signal(signal.SIGTERM), 143, "mmseg_ext: interrupted\n"),
    ],
)
def test_status_of_the_process(main, status, printed, monkeypatch, capsys):
    monkeypatch.setattr(env, "main", main)
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("logging.raiseExceptions", True)  # restored after the test
    try:
        with pytest.raises(SystemExit) as end:
            start("env")
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (end.value.code, capsys.readouterr().err) == (status, printed)


def test_ctrl_c_while_a_checkpoint_is_written(monkeypatch, capsys):
    """mmengine raises a SyntaxError then; the line says how the training continues."""
    error = SyntaxError("Failed to format the config file")
    error.__context__ = KeyboardInterrupt()
    monkeypatch.setattr(train, "main", Mock(side_effect=error))
    assert run("train") == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert lines_with(line, "interrupted", "--resume")


def test_a_reader_that_ends_first_is_no_error(tmp_path):
    """As in `mmseg-ext print_config CONFIG | head`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", "from mmseg_ext.commands import main; main()", "where"]
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (LaunchError("no"), "no"),
        (RunError("not finite"), "not finite"),
        (OSError(errno.ENOENT, "gone", "a.py"), f"a.py: gone; {RESUME_HINT}"),
        (OSError(errno.ENOSPC, "full"), f"a file of the run: full; {RESUME_HINT}"),
    ],
)
def test_an_error_of_a_run_is_one_message(error, printed, monkeypatch, capsys):
    """What all processes raise is printed by the first process of a machine."""
    monkeypatch.setattr(train, "main", Mock(side_effect=error))
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert run("train") == 1
        same = isinstance(error, LaunchError) and rank == "1"
        assert capsys.readouterr().err == ("" if same else f"mmseg_ext: {printed}\n")


def test_lines_of_two_processes_do_not_mix(monkeypatch):
    """As `print` does with PYTHONUNBUFFERED, which writes the end of a line by itself."""
    written = Mock()
    monkeypatch.setattr(sys, "stderr", written)
    report_error(RunError("not finite"), "train")
    written.write.assert_called_once_with("mmseg_ext: not finite\n")


def test_a_name_with_a_dash_follows_two_dashes(monkeypatch):
    monkeypatch.setattr("mmseg_ext.commands.start", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["mmseg-ext", "image_demo", "--", "-photo.png"])
    main()
    assert sys.argv[1:] == ["--", "-photo.png"]
