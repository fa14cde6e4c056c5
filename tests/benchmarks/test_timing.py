"""Times and peak memory: with a clock and an allocator whose numbers are known."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.tables import Case, inference_step, timed, training_step
from mmseg_ext.comparison import timing
from mmseg_ext.comparison.timing import MEBI, compare_times, peak_memory


def test_medians_and_ratios_of_functions_that_take_turns(monkeypatch):
    """The first call of each is slow and does not count."""
    now, calls, memory = [0.0], [], {"one": 1.5 * MEBI, "two": 3 * MEBI}
    seconds = {"one": iter([100, 1, 2, 30]), "two": iter([100, 4, 4, 30])}

    def run(name):
        calls.append(name)
        now[0] += next(seconds[name])

    clocks = dict.fromkeys(("perf_counter", "process_time"), lambda: now[0])
    monkeypatch.setattr(timing, "time", SimpleNamespace(**clocks))
    monkeypatch.setattr(timing, "peak_memory", lambda f, device: memory[f.args[0]])
    functions = {name: partial(run, name) for name in seconds}
    one, two = compare_times(functions, rounds=3).values()
    assert calls == ["one", "two"] * 4
    assert one == (2000, 1, 1.5) and two == (4000, 2, 3)  # the medians of 4/1, 4/2 and 30/30


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_peak_memory_of_a_function_on_the_cpu():
    sizes = (50, 100, 100)
    peaks = [peak_memory(lambda n=n: torch.ones(n * MEBI // 4)) / MEBI for n in sizes]
    assert peaks == pytest.approx(sizes, abs=8)


def test_steps_of_inference_and_training():
    layer, x = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)), torch.ones(4, 2)
    assert inference_step(layer, x)().requires_grad is False and not layer.training
    layer[0].bias.requires_grad_(False)
    gradients = training_step(layer, x)()
    assert layer.training and [g.shape for g in gradients] == [(4, 2), (3, 2)]
    layer.forward = lambda x: (layer[0].weight.sum() * x, x)  # two outputs
    own, weight = training_step(layer, x)()
    assert (weight == x.sum()).all() and (own == 1 + layer[0].weight.sum()).all()
    assert not x.requires_grad


def test_a_table_lists_cases_modes_and_modules():
    part = timed(lambda n: [Case("a", {"x": nn.Linear(n, 2), "y": nn.ReLU()}, torch.ones(1, n))], 3)
    headings, rows = part(1)
    names = [" ".join(row[:2]) for row in rows]
    assert names == ["a, inference x", "a, inference y", "a, training x", "a, training y"]
    assert {len(row) for row in rows} == {len(headings)} and rows[0][3] == "1.00"
