"""The doctor on this machine's CPU, and on machines with a fault planted."""

import json

import pytest
import torch

from mmseg_ext.commands import doctor
from mmseg_ext.doctor import Check, Finding, published_cases, small_runs
from mmseg_ext.doctor import checks as module
from mmseg_ext.layers import ExternalAttention2d, ManhattanAttention

CPU = torch.device("cpu")


def found(group: str, part: str = "", quick: bool = True) -> dict[str, Finding]:
    """Findings of the checks of a group whose name holds `part`."""
    chosen = [c for c in module.checks(CPU, quick) if c.group == group and part in c.name]
    assert chosen
    return {c.name: module.perform(c) for c in chosen}


def test_parity_and_gradients_of_every_layer():
    findings = found("parity", "attention") | found("parity", "lambda") | found("gradients")
    assert {f.status for f in findings.values()} == {"ok"}, findings
    assert "published order" in findings["external attention, bfloat16"].figure


@pytest.mark.parametrize("name", published_cases.MODELS)
def test_parity_of_every_backbone(name):
    findings = found("parity", f"{name}, float32", quick=False)
    assert {f.status for f in findings.values()} == {"ok"}, findings


def test_a_wrong_kernel_result_is_reported(monkeypatch):
    forward = ManhattanAttention.forward
    monkeypatch.setattr(ManhattanAttention, "forward", lambda self, x: forward(self, x) * 1.0005)
    findings = found("parity", "Manhattan attention, decomposed, float32")
    (finding,) = findings.values()
    assert finding.status == "FAIL" and "5.0e-04" in finding.figure


def test_a_wrong_gradient_is_reported(monkeypatch):
    forward = ExternalAttention2d.forward
    wrong = lambda self, x: forward(self, 2 * x - x.detach())  # noqa: E731
    monkeypatch.setattr(ExternalAttention2d, "forward", wrong)
    assert found("gradients", "external attention")["external attention"].status == "FAIL"


@pytest.mark.distributed
def test_the_groups_gradient(monkeypatch):
    gradients, world = small_runs.group_gradients(CPU)
    assert world == 2
    monkeypatch.setattr(small_runs, "group_gradients", lambda device: (gradients, world))
    assert small_runs.check_gradients(CPU).status == "ok"
    gradients[next(iter(gradients))] /= 2
    assert small_runs.check_gradients(CPU).status == "FAIL"


def test_a_run_resumes_bit_for_bit():
    assert small_runs.check_resume().status == "ok"


@pytest.mark.parametrize("name", ["EAHead, amp", "RMT, deterministic"])
def test_training_steps_lower_the_loss(name):
    assert found("training", name, quick=False)[name].status == "ok"


def test_the_command_writes_its_findings_and_fails_where_one_does(monkeypatch, tmp_path, capsys):
    chosen = [
        Check("speed", "a layer", lambda: Finding("slow", "x0.5")),
        Check("parity", "a layer", lambda: Finding("ok", "1e-7")),
    ]
    monkeypatch.setattr(module, "checks", lambda *args: chosen)
    path = tmp_path / "out" / "findings.json"
    assert doctor.main(["--device", "cpu", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    assert [c["status"] for c in record["checks"]] == ["slow", "ok"]
    chosen.append(Check("files", "resume", lambda: 1 / 0))
    assert doctor.main(["--device", "cpu"]) == 1
    assert "FAIL    files: resume" in capsys.readouterr().out


def test_without_the_stack_the_layers_are_checked_and_the_rest_is_a_line(monkeypatch):
    problem = "mmseg_ext: the package 'mmcv' is not installed; run: pip install"
    monkeypatch.setattr(module, "stack_problem", lambda: problem)
    rows = [("torch", "2.13.0"), ("mmcv", "not usable: No module"), ("stack", problem)]
    monkeypatch.setattr(module, "describe", lambda: rows)
    every = list(module.checks(CPU, quick=True))
    assert {c.group for c in every} >= {"parity", "gradients", "processes", "speed", "stack"}
    assert not {c.group for c in every} & {"training", "files"}
    assert module.perform(every[-1]) == Finding("skipped", problem)
    environment = [module.perform(c).status for c in every if c.group == "environment"]
    assert environment[:3] == ["ok", "skipped", "skipped"]
