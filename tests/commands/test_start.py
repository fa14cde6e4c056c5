"""Starting a command: its status, an unforeseen error, Ctrl-C."""

import pytest

from mmseg_ext.commands import env, start


def failing(error: BaseException):
    def main():
        raise error

    return main


def test_an_unforeseen_error_is_a_traceback_and_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(env, "main", failing(RuntimeError("a shape\n of another\tworld")))
    with pytest.raises(SystemExit) as end:
        start("env")
    *trace, line = capsys.readouterr().err.splitlines()
    assert end.value.code == 1 and trace[0].startswith("Traceback")
    assert line == "mmseg_ext: env failed: RuntimeError: a shape of another world"
    assert not list(tmp_path.iterdir())


def test_ctrl_c_is_one_line_and_status_130(monkeypatch, capsys):
    monkeypatch.setattr(env, "main", failing(KeyboardInterrupt()))
    with pytest.raises(SystemExit) as end:
        start("env")
    assert (end.value.code, capsys.readouterr().err) == (130, "mmseg_ext: interrupted\n")


def test_a_commands_status_is_the_process_status(monkeypatch):
    monkeypatch.setattr("sys.argv", ["mmseg-ext env"])
    monkeypatch.setattr(env, "main", lambda: 3)
    with pytest.raises(SystemExit) as end:
        start("env")
    assert end.value.code == 3
