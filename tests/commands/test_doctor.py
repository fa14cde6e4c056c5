"""The doctor on this machine's CPU, and on machines with a fault planted."""

import json

import pytest
import torch

from mmseg_ext.commands import doctor
from mmseg_ext.doctor import checks as module
from mmseg_ext.doctor import processes, published_cases, small_runs
from mmseg_ext.doctor.findings import Check, Finding
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
    assert "plain" in findings["external attention, bfloat16"].figure


def test_a_wrong_kernel_result_is_reported(monkeypatch):
    forward = ManhattanAttention.forward
    monkeypatch.setattr(ManhattanAttention, "forward", lambda self, x: forward(self, x) * 1.0005)
    findings = found("parity", "Manhattan attention, decomposed, float32")
    (finding,) = findings.values()
    assert finding.status == "FAIL" and "5.0e-04" in finding.figure


def test_a_wrong_gradient_is_reported(monkeypatch):
    forward = ExternalAttention2d.forward
    monkeypatch.setattr(ExternalAttention2d, "forward", lambda m, x: forward(m, 2 * x - x.detach()))
    assert found("gradients", "external attention")["external attention"].status == "FAIL"


def test_compiled_against_eager(monkeypatch):
    layer = module.Layer(ExternalAttention2d(16, 4), (), (1, 16, 6, 6))
    monkeypatch.setitem(module.LAYERS, "external attention", lambda: layer)
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda m: compiled.append(m) or m)
    findings = found("compiled", "external attention", quick=False)
    assert findings["external attention"].status == "ok" and compiled == [layer.module]
    assert {f.status for f in found("compiled").values()} == {"skipped"}  # quick


def test_without_a_compiler_compiling_is_skipped(monkeypatch):
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    findings = found("training", "compile", quick=False) | found("compiled", quick=False)
    assert {f.status for f in findings.values()} == {"skipped"}
    assert all("install g++" in f.figure for f in findings.values())


def test_a_device_out_of_memory_is_reported(monkeypatch):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(ManhattanAttention, "forward", full)
    finding = found("gradients", "Manhattan attention, full")["Manhattan attention, full"]
    assert finding.status == "FAIL" and finding.figure.startswith("out of memory")


@pytest.mark.distributed
def test_the_groups_gradient_and_a_failing_collective(monkeypatch):
    gradients, world = processes.group_gradients(CPU)
    assert world == 2
    monkeypatch.setattr(processes, "group_gradients", lambda device: (gradients, world))
    assert processes.check_gradients(CPU).status == "ok"
    name, gradient = next(iter(gradients.items()))
    monkeypatch.setattr(
        processes, "group_gradients", lambda device: (gradients | {name: gradient / 2}, world)
    )
    assert processes.check_gradients(CPU).status == "FAIL"
    monkeypatch.undo()
    monkeypatch.setattr(processes, "SECONDS", 0.01)
    finding = module.perform(Check("", "", lambda: processes.check_gradients(CPU)))
    assert finding.status == "FAIL" and "did not end" in finding.figure


def test_a_file_that_runs_code_is_reported_where_it_is_read(monkeypatch):
    assert small_runs.check_safe_loading().status == "ok"
    unsafe = lambda path: torch.load(path, weights_only=False)  # noqa: E731
    monkeypatch.setattr("mmseg_ext.checkpoint.read_state_dict", unsafe)
    assert small_runs.check_safe_loading().status == "FAIL"


def test_a_run_resumes_bit_for_bit():
    assert small_runs.check_resume(CPU).status == "ok"


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, mode) for name in ("EAHead", "RMT") for mode in ("amp", "deterministic")),
        ("EAHead", "trace"),
    ],
)
def test_training_steps_lower_the_loss(name, mode):
    assert module._training(name, mode, CPU).status == "ok"


def test_the_command_writes_its_findings_and_fails_where_one_does(monkeypatch, tmp_path, capsys):
    chosen = [
        Check("speed", "a layer", lambda: Finding("slow", "x0.5")),
        Check("parity", "a layer", lambda: Finding("ok", "1e-7")),
    ]
    monkeypatch.setattr(doctor, "checks", lambda *args: chosen)
    path = tmp_path / "out" / "findings.json"
    assert doctor.main(["--device", "cpu", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    assert [c["status"] for c in record["checks"]] == ["slow", "ok"]
    assert record["torch"] == torch.__version__
    chosen.append(Check("files", "resume", lambda: 1 / 0))
    assert doctor.main(["--device", "cpu"]) == 1
    assert "FAIL    files: resume" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["--device", "cuda:93"],
        ["--device", "tpu"],
        ["--device", "meta"],
        ["--config", "no/such.py"],
    ],
)
def test_wrong_arguments_end_in_one_line(argv, capsys):
    with pytest.raises(SystemExit) as end:
        doctor.main(argv)
    assert end.value.code == 2
    assert argv[1] in capsys.readouterr().err


def test_without_the_stack_the_layers_are_checked_and_the_rest_is_a_line(monkeypatch):
    problem = "mmseg_ext: the package 'mmcv' is not installed; run: pip install"
    monkeypatch.setattr(module, "stack_problem", lambda: problem)
    rows = [("torch", "2.13.0"), ("mmcv", "not installed"), ("stack", problem)]
    monkeypatch.setattr(module, "describe", lambda: rows)
    every = list(module.checks(CPU, quick=True))
    assert {c.group for c in every} >= {"parity", "gradients", "processes", "speed", "stack"}
    assert "training" not in {c.group for c in every}
    (stack,) = (c for c in every if c.group == "stack")
    assert module.perform(stack) == Finding("skipped", problem)
    environment = [module.perform(c).status for c in every if c.group == "environment"]
    assert environment[:3] == ["ok", "skipped", "skipped"]


def test_every_fixture_that_needs_no_config_is_a_case():
    fixtures = {
        path.stem for path in published_cases.Fixture.__init__.__globals__["FOLDER"].glob("*.npz")
    }
    assert len(published_cases.LAYERS) + len(published_cases.MODELS) == len(fixtures) - 1
