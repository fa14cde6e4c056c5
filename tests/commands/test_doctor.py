"""The doctor on the CPU, and with faults planted."""

import itertools
import json
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.utils.benchmark import Timer

from mmseg_ext import commands
from mmseg_ext.doctor import checks as module  # one check; the command runs all for minutes
from mmseg_ext.doctor.checks import Finding
from mmseg_ext.layers import ExternalAttention2d, ManhattanAttention
from mmseg_ext.layers.manhattan_attention import attend
from mmseg_ext.segmentors import StripEncoderDecoder

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


def test_masked_attention(monkeypatch):
    """Gradients that are NaN at one length are found, and those of an output off by 1 %."""
    findings = run("masked attention")
    assert [f.status for f in findings.values()] == ["ok"] * 3, findings
    assert all("64: " in f.figure and "192: " in f.figure for f in findings.values())

    def nan_at_192(q, *others):
        out = attend(q, *others)
        out.register_hook(lambda g: g * (float("nan") if q.shape[2] == 192 else 1))
        return out

    for wrong in (nan_at_192, lambda *args: 1.01 * attend(*args)):
        monkeypatch.setattr(module, "attend", wrong)
        assert run("masked attention", "float32")["float32"].status == "FAIL"


@pytest.mark.parametrize("name", ["MaSAHead", "DeepViT"])
def test_training_step(name):
    (finding,) = run("training", name).values()
    assert finding.status == "ok"
    parts = module.SEGMENTORS[name]
    full, half = (module.train_step(parts, CPU, *half)[0] for half in ((), (True,)))
    assert full != half and f"loss {full:.4f}" in finding.figure


def test_training_step_that_is_random_or_wrong_under_autocast(monkeypatch):
    forward = ExternalAttention2d.forward
    check = partial(module.check_training, module.SEGMENTORS["EAHead"], CPU)
    with monkeypatch.context() as patch:
        noise = iter((1.0, 1.01, 1.0))
        patch.setattr(ExternalAttention2d, "forward", lambda s, x: forward(s, x) * next(noise))
        assert check().status == "FAIL"
    scale = lambda: float("nan") if torch.is_autocast_enabled("cpu") else 1  # noqa: E731
    monkeypatch.setattr(ExternalAttention2d, "forward", lambda s, x: forward(s, x) * scale())
    assert check().status == "FAIL"


def test_strips_compared_with_full_maps(monkeypatch):
    findings = run("class maps in strips")
    assert [f.status for f in findings.values()] == ["ok", "ok"], findings
    loss = StripEncoderDecoder.loss
    wrong = lambda *args: {k: 1.001 * v for k, v in loss(*args).items()}  # noqa: E731
    monkeypatch.setattr(StripEncoderDecoder, "loss", wrong)
    assert run("class maps in strips", "float32")["float32"].status == "FAIL"


@pytest.mark.slow
def test_resume():
    assert module.check_resume() == ("ok", "0 of 156 tensors differ")


def test_resume_that_differs(monkeypatch):
    states = Mock(side_effect=[{"a": torch.ones(1)}, {"a": torch.zeros(1)}])
    monkeypatch.setattr("mmseg_ext.checkpoint.read_state_dict", states)
    monkeypatch.setattr("mmseg_ext.engine.build.build_train_runner", Mock())
    assert module.check_resume().status == "FAIL"


@pytest.mark.parametrize(("ratio", "status"), [(0.9, "ok"), (0.7, "slow")])
def test_speed(monkeypatch, ratio, status):
    """The status is 'slow' below 0.8 of the published order's speed."""
    seconds, calls = itertools.cycle([1, ratio, 3, 3 * ratio, 2, 9]), []

    class Clock(Timer):
        def timeit(self, number):
            super().timeit(number)
            calls.append(self._globals["form"])
            return SimpleNamespace(mean=next(seconds))

    monkeypatch.setattr(module, "Timer", Clock)
    layer = ExternalAttention2d(8)
    finding = module.check_speed((lambda: layer, (1, 8, 4, 4)), CPU, rounds=3)
    times = f"2000.0 ms, x{ratio:.2f}"  # medians
    assert finding == (status, f"training {times}; inference {times}")
    assert calls == [layer, layer.published_order] * 6
    assert not layer.training and all(p.grad.any() for p in layer.parameters())


def test_command(monkeypatch, tmp_path, capsys):
    """The JSON file has every finding; a check that fails or raises sets the status to 1."""
    chosen = [("speed", "a layer", lambda: Finding("slow", "x0.5"))]
    monkeypatch.setattr(module, "checks", lambda *args: chosen)
    path = tmp_path / "out" / "findings.json"
    assert commands.run("doctor", ["--device", "cpu", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    (check,) = record["checks"]
    assert check["status"] == "slow" and 0 <= check["seconds"] < 10
    assert "torch" in record["environment"] and record["device"].startswith("cpu (")
    printed = capsys.readouterr().out
    assert "\nstack: usable" in printed and "slow    speed: a layer" in printed
    assert printed.endswith("\n1 slow\n")
    chosen.append(("files", "resume", lambda: 1 / 0))
    assert commands.run("doctor", ["--device", "cpu"]) == 1
    assert "FAIL    files: resume" in capsys.readouterr().out
