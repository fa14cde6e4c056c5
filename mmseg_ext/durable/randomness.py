"""Sample order and augmentation that depend only on the seed and the position in the run.

With mmengine, the augmentation of a sample depends on the earlier draws of its worker, so it
changes with the number of workers and after a resume. Here the sampler attaches a seed to each
index, derived from the run's seed and the sample's position in the stream of all processes, and the
dataset draws from that seed. The position also determines the index, so a run resumes at any
iteration in the time of one permutation: a loop by iterations finds the position itself and skips
to it. A loop by epochs starts the epoch again, so the sampler leaves out the samples that were
used.
"""

import functools
import hashlib
import itertools
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger
from typing import Any

import numpy as np
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.registry import DATA_SAMPLERS, DATASETS
from torch.utils.data import DataLoader

from mmseg_ext.errors import CheckpointError


def random_state() -> dict:
    """Return the states of Python's, NumPy's and torch's generators, including CUDA's."""
    version, numbers, normal = random.getstate()
    numpy_state: Any = np.random.get_state()  # a tuple
    kind, keys, *rest = numpy_state
    state = {
        "python": (version, torch.tensor(numbers), normal),  # reading 625 objects takes 10 ms
        "numpy": (kind, torch.from_numpy(keys.astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict) -> None:
    """Restore the result of `random_state`; its tensors may be on any device."""
    version, numbers, normal = state["python"]  # in checkpoints of 0.3.0 the numbers are a tuple
    random.setstate((version, tuple(torch.as_tensor(numbers).tolist()), normal))
    kind, keys, position, *rest = state["numpy"]
    # NumPy checks neither, and would read other memory.
    if len(keys) != 624 or not 0 <= position <= 624:
        raise CheckpointError(f"random state: {len(keys)} keys, position {position}; expected 624")
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), position, *rest))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's CPU generators (64 bits), and restore them at the end."""
    # Not `random_state`, whose plain tensors take longer to make than the generators' own states.
    # The generator of the CPU only, because a forked worker must not touch CUDA.
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)


def derive_seed(seed: int, what: str, number: int) -> int:
    """Return a seed of 63 bits for item `number` of `what`; seeds of neighbors are unrelated."""
    text = f"{seed} {what} {number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class SampleIndex(int):
    """The index of a sample, with the seed of its augmentation."""

    seed: int

    def __new__(cls, index: int, seed: int = 0):  # unpickling sets the seed
        self = super().__new__(cls, index)
        self.seed = seed
        return self


@DATA_SAMPLERS.register_module()
class PositionedInfiniteSampler(InfiniteSampler):
    """mmengine's `InfiniteSampler`, which can also start at any position without iterating.

    The stream is a sequence of permutations of the dataset, each derived from the seed and its
    number. Process r of n takes the positions r, r + n, r + 2n, ..., so n processes with batches of
    b see the samples and augmentations that one process sees with batches of n b.
    """

    start = 0

    def skip(self, num_samples: int) -> None:
        """Start at sample number `num_samples` of this process, counted from the run's start."""
        self.start = num_samples

    def __iter__(self) -> Iterator[SampleIndex]:
        position = self.start * self.world_size + self.rank
        for epoch in itertools.count(position // self.size):
            order = self._order(epoch)
            while position // self.size == epoch:
                seed = derive_seed(self.seed, "sample", position)
                yield SampleIndex(order[position % self.size], seed)
                position += self.world_size

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.size))
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
        return torch.randperm(self.size, generator=generator).tolist()


@DATA_SAMPLERS.register_module()
class PositionedSampler(DefaultSampler):
    """mmengine's `DefaultSampler` in the same order, with a seed for each sample.

    Sample p of epoch e has position e n + p in the stream of all processes, where n is the length
    of an epoch.
    """

    start = 0  # samples of this process that the next epoch leaves out
    batch_samples: int | None = None  # in the batches of an epoch, if all are full
    _first_epoch = 0

    def skip(self, num_samples: int) -> None:
        """Start at this sample of this process, in full batches from the run's start.

        mmengine's iteration-based loop calls this, and then numbers the epochs from 0.
        """
        self._first_epoch, self.start = divmod(num_samples, self.batch_samples or self.num_samples)
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = self._first_epoch + epoch

    def __iter__(self) -> Iterator[SampleIndex]:
        skipped = self.start
        self.start = 0  # of the next epoch
        first = self.epoch * self.total_size + self.rank
        for i, index in enumerate(super().__iter__()):
            if i >= skipped:
                position = first + i * self.world_size
                yield SampleIndex(index, derive_seed(self.seed, "sample", position))


def positioned_sampler(loader: DataLoader) -> PositionedInfiniteSampler | PositionedSampler | None:
    """Return the sampler that seeds a loader's samples, if any, also inside a batch sampler."""
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, PositionedInfiniteSampler | PositionedSampler):
            return sampler
    return None


_POSITIONED = {InfiniteSampler: PositionedInfiniteSampler, DefaultSampler: PositionedSampler}


class SeededSamples:
    """A dataset that draws the augmentation of a `SampleIndex` from its seed.

    Everything else goes to the dataset, also attributes that hooks set, such as its `pipeline`.
    """

    def __init__(self, dataset):
        object.__setattr__(self, "inner", dataset)

    def __getattr__(self, name: str):
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.inner, name, value)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int):
        if not isinstance(index, SampleIndex):
            return self.inner[index]
        with seeded(index.seed):
            return self.inner[int(index)]


def with_sample_seeds(dataloader: dict) -> dict:
    """Return a dataloader's settings with a positioned sampler and a seeded dataset.

    Return them unchanged for another sampler than mmengine's two, and without shuffling, as in
    validation.
    """
    sampler, dataset = dataloader.get("sampler"), dataloader.get("dataset")
    if not (isinstance(sampler, dict) and isinstance(dataset, dict)):
        return dataloader
    given = sampler["type"]
    if isinstance(given, str):
        given = DATA_SAMPLERS.get(given)
    positioned = _POSITIONED.get(given, given)
    if positioned not in _POSITIONED.values():
        return dataloader
    if positioned is PositionedSampler and not sampler.get("shuffle", True):
        return dataloader
    # A copy of the same class: mmengine pops optional keys, which only a ConfigDict allows.
    changed = dataloader.copy()
    seeded_samples = SeededSamples(DATASETS.build(dataset))
    changed.update(sampler={**sampler, "type": positioned}, dataset=seeded_samples)
    return changed


def isolate_loader(loader: DataLoader) -> DataLoader:
    """Let `loader` draw nothing from the global generator, and its workers survive a stop signal.

    The training process answers a signal to the process group, and needs the batches of its workers
    until it has stopped. A second signal ends the workers.
    """
    loader.generator = torch.Generator().manual_seed(0)
    loader.worker_init_fn = functools.partial(_start_worker, inner=loader.worker_init_fn)
    return loader


def _start_worker(worker_id: int, inner) -> None:
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):  # Ctrl-C reaches the process group
        signal.signal(number, _ignore_once)
    if inner is not None:
        inner(worker_id)


def _ignore_once(number: int, frame) -> None:
    signal.signal(number, lambda *_: os._exit(0))


def samples_meta(loader: DataLoader, by_epochs: bool) -> dict[str, Any]:
    """Return what the `meta` of a checkpoint stores of the samples."""
    meta = {}
    sampler: Any = positioned_sampler(loader)
    if sampler is not None:
        meta["sampler_seed"] = sampler.seed
        meta["samples"] = _samples(sampler, loader)
    if by_epochs:
        meta["epoch_length"] = len(loader)
    return meta


def continue_samples(
    loader: DataLoader, meta: dict, by_epochs: bool, filename: str, logger: Logger
) -> None:
    """Continue the samples of the checkpoint `filename` with this `meta`.

    Warn if they differ, or if an epoch starts again; then `meta["iter"]` is its first iteration.
    """
    sampler: Any = positioned_sampler(loader)
    if sampler is None:
        logger.warning(
            "train_dataloader.sampler: samples and augmentations of the resumed run differ; "
            "use InfiniteSampler, or DefaultSampler with shuffle=True, for an exact resume"
        )
    else:
        sampler.seed = meta.get("sampler_seed", sampler.seed)
        saved, own = meta.get("samples"), _samples(sampler, loader)
        if saved is not None and saved != own:
            logger.warning(
                f"{filename}: was saved with {saved}, and the config has {own}; the order of "
                "the images changes"
            )
    if by_epochs:
        _continue_epoch(sampler, loader, meta, filename, logger)


def _continue_epoch(
    sampler: Any, loader: DataLoader, meta: dict, filename: str, logger: Logger
) -> None:
    """Continue within the epoch of a checkpoint, or start this epoch again."""
    first = meta["epoch"] * len(loader)
    done = meta["iter"] - first
    same_length = meta.get("epoch_length") == len(loader)
    is_within_epoch = same_length and 0 <= done <= len(loader)
    if sampler is not None and is_within_epoch:
        sampler.start = done * batch_size(loader)
    elif done:  # the loop would exceed its last iteration
        meta["iter"] = first
        logger.warning(
            f"{filename}: cannot continue within an epoch with this sampler or number of "
            f"images; epoch {meta['epoch'] + 1} starts again, at iteration {first}"
        )


def _samples(sampler: Any, loader: DataLoader) -> str:
    """Return the numbers that determine the order with the seed: '8 images in batches of 2'."""
    return f"{len(sampler.dataset)} images in batches of {sampler.world_size * batch_size(loader)}"


def batch_size(loader: DataLoader) -> int:
    """Return the samples in a batch of this process; batch samplers of users may not say it."""
    return getattr(loader.batch_sampler, "batch_size", 1)
