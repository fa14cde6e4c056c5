"""Times and peak memory: with a clock and an allocator whose numbers are known."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from mmseg_ext.cost import timing
from mmseg_ext.cost.timing import (
    MEBI,
    compare_times,
    inference_step,
    peak_memory,
    training_step,
)


def test_medians_ratios_and_a_warm_up_that_does_not_count(monkeypatch):
    """Two functions alternate; the first call of each is slow."""
    now, calls, memory = itertools.count(), [], {"one": 1.5 * MEBI, "two": 3 * MEBI}
    seconds = {"one": iter([100, 1, 2, 30]), "two": iter([100, 4, 4, 30])}
    clock = [0.0]

    def function(name):
        def run():
            calls.append((next(now), name))
            clock[0] += next(seconds[name])

        return run

    functions = {name: function(name) for name in seconds}
    names = {function: name for name, function in functions.items()}
    monkeypatch.setattr(timing, "peak_memory", lambda f, device: memory[names[f]])
    one, two = compare_times(functions, rounds=3, clock=lambda: clock[0]).values()
    assert [name for _, name in calls] == ["one", "two"] * 4
    assert one == (2000, 1, 1.5) and two == (4000, 2, 3)  # the medians of 4/1, 4/2 and 30/30


def test_a_gpu_is_measured_by_its_allocator(monkeypatch):
    """The work is finished before the clock and the counters are read."""
    events = []
    for name, value in {
        **{"synchronize": None, "reset_peak_memory_stats": None, "is_available": True},
        **{"memory_allocated": 100, "max_memory_allocated": 350},
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda n=name, v=value: events.append(n) or v)
    assert peak_memory(lambda: events.append("call"), "cuda:0") == 250
    reset = ["synchronize", "reset_peak_memory_stats", "memory_allocated"]
    measured = [*reset, "call", "synchronize", "max_memory_allocated"]
    assert events == measured
    events.clear()
    (result,) = compare_times({"a": lambda: events.append("call")}, 2, "cuda").values()
    assert events == ["is_available", *["synchronize", "call", "synchronize"] * 3, *measured]
    assert result.mib == 250 / MEBI


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_peak_memory_of_a_function_on_the_cpu():
    sizes = (50, 100, 100)
    peaks = [peak_memory(lambda n=n: torch.ones(n * MEBI // 4)) / MEBI for n in sizes]
    assert peaks == pytest.approx(sizes, abs=8)


def test_steps_of_inference_and_training():
    layer, x = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)).eval(), torch.ones(4, 2)
    assert inference_step(layer.train(), x)().requires_grad is False and not layer.training
    assert inference_step(lambda x: 2 * x, x)().sum() == 16
    layer[0].bias.requires_grad_(False)
    gradients = training_step(layer, x)()
    assert layer.training and [g.shape for g in gradients] == [(4, 2), (3, 2)]
    weight = torch.tensor(3.0, requires_grad=True)
    given, own = training_step(lambda x: (weight * x, x), x, [weight])()  # two outputs
    assert (given == 4).all() and own == x.sum() and not x.requires_grad
