"""Starting a command: the list, a name that is not there, and an error that nothing foresaw."""

import re
from pathlib import Path

import pytest

from mmseg_ext.commands import env, start


def test_an_error_that_nothing_foresaw_is_one_line_and_a_file(monkeypatch, tmp_path):
    def fails():
        raise RuntimeError("a shape\n of another\tworld")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(env, "main", fails)
    with pytest.raises(SystemExit) as end:
        start("env")
    message = end.value.code
    assert message.startswith(
        "mmseg_ext: env was stopped by RuntimeError: a shape of another world"
    )
    assert "\n" not in message
    traceback = Path(re.search(r"traceback is in (\S+)\)", message)[1]).read_text()
    assert "in fails" in traceback and "a shape\n of another" in traceback


def test_a_commands_status_is_the_process_status(monkeypatch):
    monkeypatch.setattr(env, "main", lambda: 3)
    with pytest.raises(SystemExit) as end:
        start("env")
    assert end.value.code == 3
