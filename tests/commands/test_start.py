"""Starting a command: its status, an error that nothing foresaw, Ctrl-C."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmseg_ext.commands import env, start
from tests.configs import CONFIGS


def test_an_error_that_nothing_foresaw_is_one_line_and_a_file(monkeypatch, tmp_path):
    def fails():
        raise RuntimeError("a shape\n of another\tworld")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["mmseg-ext env"])
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
    monkeypatch.setattr("sys.argv", ["mmseg-ext env"])
    monkeypatch.setattr(env, "main", lambda: 3)
    with pytest.raises(SystemExit) as end:
        start("env")
    assert end.value.code == 3


@pytest.mark.slow
def test_ctrl_c_during_the_imports_prints_one_line():
    words = [sys.executable, "tools/train.py", "c.py"]
    process = subprocess.Popen(words, cwd=CONFIGS.parent, stderr=subprocess.PIPE, text=True)
    try:
        while b"libtorch" not in Path(f"/proc/{process.pid}/maps").read_bytes():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert (process.returncode, error) == (130, "mmseg_ext: interrupted\n")


def test_a_program_that_imports_the_package_keeps_its_answer_to_ctrl_c():
    code = "import signal, mmseg_ext; print(signal.getsignal(2) is signal.default_int_handler)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "True\n"
