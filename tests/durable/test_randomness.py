"""Sample order and augmentation: they depend on the seed and the position only."""

import itertools
import os
import random
import signal

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.dataset import InfiniteSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from mmseg_ext.durable import DurableRunner, PositionedInfiniteSampler, PositionedSampler
from mmseg_ext.durable.randomness import (
    SampleIndex,
    SeededSamples,
    derive_seed,
    isolate_loader,
    random_state,
    seeded,
    set_random_state,
    with_sample_seeds,
)
from tests.engine.states import assert_same


class Numbers:
    """A dataset whose samples are random numbers from the three generators."""

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(1).item()


def stream(count, start=0, rank=0, world_size=1, **settings) -> list[tuple[int, int]]:
    """Return the indices and seeds of samples of a process."""
    sampler = PositionedInfiniteSampler(Numbers(), **{"seed": 3, **settings})
    sampler.rank, sampler.world_size = rank, world_size
    sampler.skip(start)
    return [(index, index.seed) for index in itertools.islice(sampler, count)]


def test_processes_share_one_stream_that_can_start_anywhere():
    complete = stream(40)
    for start in (0, 1, 6, 7, 8, 33):
        assert stream(5, start) == complete[start : start + 5]
    for rank in range(3):
        assert stream(10, 2, rank, world_size=3) == complete[6 + rank :: 3][:10]
    assert len({seed for _, seed in complete}) == 40
    order = [index for index, _ in complete]
    for epoch in range(5):
        assert sorted(order[7 * epoch : 7 * epoch + 7]) == list(range(7))
    assert order[:7] != order[7:14]
    assert stream(40, seed=4) != complete
    assert [index for index, _ in stream(3, 6, shuffle=False)] == [6, 0, 1]


def test_samples_draw_from_their_seed_only():
    samples = SeededSamples(Numbers())
    torch.manual_seed(0)
    before = random_state()
    first, again, other = (samples[SampleIndex(2, seed)] for seed in (5, 5, 6))
    assert_same(random_state(), before)
    assert first == again
    assert first[0] == 2
    assert all(a != b for a, b in zip(first[1:], other[1:], strict=True))
    plain = samples[2]  # an index without a seed uses the global generators
    set_random_state(before)
    assert samples[2] == plain
    with seeded(2**63 - 1):  # the largest
        assert 0 <= torch.rand(1).item() < 1
    samples.pipeline = ["other"]  # as mmdetection's PipelineSwitchHook does
    assert samples.inner.pipeline == samples.pipeline == ["other"]


def test_epochs_and_processes_of_a_positioned_sampler_differ():
    """Five samples in two processes: padded to six, in mmengine's order, never the same seed."""
    seeds = []
    for epoch in range(2):
        order = []
        for rank in range(2):
            sampler = PositionedSampler(range(5), seed=3)
            sampler.rank, sampler.world_size = rank, 2
            sampler.num_samples, sampler.total_size = 3, 6
            sampler.set_epoch(epoch)
            order.append(list(sampler))
            positions = [6 * epoch + rank + 2 * i for i in range(3)]
            seeds += [index.seed for index in order[-1]]
            assert seeds[-3:] == [derive_seed(3, "sample", position) for position in positions]
        assert {*order[0], *order[1]} == set(range(5))
    assert len(set(seeds)) == 12


def test_a_batch_sampler_with_its_own_batch_size():
    settings = {
        "num_workers": 0,
        "dataset": {"type": Numbers},
        "sampler": {"type": "InfiniteSampler", "shuffle": True},
        "batch_sampler": {"type": BatchSampler, "batch_size": 2, "drop_last": False},
    }
    loader = DurableRunner.build_dataloader(ConfigDict(settings), seed=3)
    assert [len(batch[0]) for batch, _ in zip(loader, range(2), strict=False)] == [2, 2]
    assert isinstance(loader.batch_sampler.sampler, PositionedInfiniteSampler)
    assert DurableRunner.build_dataloader(loader) is loader


@pytest.mark.parametrize(
    ("sampler", "kind"),
    [
        ({"type": "InfiniteSampler"}, PositionedInfiniteSampler),
        ({"type": InfiniteSampler, "shuffle": False}, PositionedInfiniteSampler),
        ({"type": "DefaultSampler"}, PositionedSampler),
        ({"type": "PositionedSampler", "shuffle": True}, PositionedSampler),
        ({"type": "DefaultSampler", "shuffle": False}, None),
        ({"type": RandomSampler}, None),
    ],
)
def test_shuffled_samples_get_seeds(sampler, kind):
    """Unless the sampler is not mmengine's, or the order is fixed, as in validation."""
    settings = ConfigDict(dataset={"type": Numbers}, sampler=sampler)
    found = with_sample_seeds(settings)
    if kind is None:
        assert found is settings
    else:
        assert found["sampler"] == {**sampler, "type": kind}
        assert type(found["dataset"]) is SeededSamples
    settings.dataset = Numbers()
    assert with_sample_seeds(settings) is settings


def test_a_loader_draws_nothing_from_the_global_generator():
    before = random_state()
    assert len(list(isolate_loader(DataLoader(torch.arange(4), batch_size=2)))) == 2
    assert_same(random_state(), before)


def test_workers_survive_the_first_stop_signal(monkeypatch):
    """They are initialized as the loader's settings say."""
    handlers, calls = {}, []
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(os, "_exit", lambda status: calls.append(("exit", status)))
    isolate_loader(DataLoader(torch.arange(4))).worker_init_fn(3)
    isolate_loader(DataLoader(torch.arange(4), worker_init_fn=calls.append)).worker_init_fn(3)
    assert calls == [3] and handlers.pop(signal.SIGUSR1) == signal.SIG_IGN
    assert handlers.keys() == {signal.SIGTERM, signal.SIGINT}
    for _ in range(2):
        handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert calls == [3, ("exit", 0)]


def test_the_random_state_of_a_gpu(monkeypatch):
    """A worker that draws a sample must not touch it."""
    state, given = torch.arange(3), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", given.append)
    with seeded(3):
        pass
    assert given == []
    set_random_state(saved := random_state())
    assert len(given) == 1 and given[0] is saved["cuda"] is state
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    set_random_state(saved)
    assert len(given) == 1 and "cuda" not in random_state()
