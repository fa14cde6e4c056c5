"""The doctor on the CPU, and with faults planted."""

import json
from unittest.mock import Mock

import pytest
import torch

from mmseg_ext import commands
from mmseg_ext.doctor import checks as module  # one check; the command runs all for minutes
from mmseg_ext.doctor.checks import Finding
from mmseg_ext.layers import ManhattanAttention

CPU = torch.device("cpu")


def run(group: str, part: str = "") -> dict[str, Finding]:
    """Return the findings of the quick checks of a group whose name contains `part`."""
    chosen = [c for c in module.checks(CPU, quick=True) if c[0] == group and part in c[1]]
    assert chosen
    return {name: check() for _, name, check in chosen}


def test_parity_of_every_layer():
    """The tests of backbones run the parity of backbones."""
    findings = [f for part in ("attention", "lambda", "masa") for f in run("parity", part).values()]
    assert len(findings) == 3 * 8 and {f.status for f in findings} == {"ok"}, findings


def test_wrong_result(monkeypatch):
    forward = ManhattanAttention.forward
    monkeypatch.setattr(ManhattanAttention, "forward", lambda s, x: forward(s, x) * 1.000015)
    (finding,) = run("parity", "masa_full, float32").values()
    assert finding.status == "FAIL" and "error 1." in finding.figure


@pytest.mark.slow
def test_resume():
    assert module.check_resume() == ("ok", "0 of 156 tensors differ")


def test_resume_that_differs(monkeypatch):
    states = Mock(side_effect=[{"a": torch.ones(1)}, {"a": torch.zeros(1)}])
    monkeypatch.setattr("mmseg_ext.checkpoint.read_state_dict", states)
    monkeypatch.setattr("mmseg_ext.engine.build.build_train_runner", Mock())
    assert module.check_resume().status == "FAIL"


def test_command(monkeypatch, tmp_path, capsys):
    """The JSON file has every finding; a check that fails or raises sets the status to 1."""
    chosen = [("parity", "a layer", lambda: Finding("ok", "error 0"))]
    monkeypatch.setattr(module, "checks", lambda *args: chosen)
    path = tmp_path / "out" / "findings.json"
    assert commands.run("doctor", ["--device", "cpu", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    (check,) = record["checks"]
    assert check["status"] == "ok" and 0 <= check["seconds"] < 10
    assert "torch" in record["environment"] and record["device"].startswith("cpu (")
    printed = capsys.readouterr().out
    assert "\nstack: usable" in printed and "ok      parity: a layer" in printed
    assert printed.endswith("\n1 ok\n")
    chosen.append(("files", "resume", lambda: 1 / 0))
    assert commands.run("doctor", ["--device", "cpu"]) == 1
    assert "FAIL    files: resume" in capsys.readouterr().out
