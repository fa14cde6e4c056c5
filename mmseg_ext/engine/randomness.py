"""What a config's `randomness` needs: random streams that a resume puts back, and determinism.

With mmengine a sample's augmentation depends on what its worker drew before, so that it changes
with the number of workers and after a resume. Here the sampler gives each index a seed, made from
the run's seed and the sample's position in the stream of all processes, and the dataset's random
draws start from it. The position also gives the index directly: to resume is to start counting
elsewhere, at any iteration in the time of one permutation.

With `deterministic=True` torch refuses, on CUDA, the two-dimensional negative log-likelihood of
mmsegmentation's `CrossEntropyLoss` and the backward pass of adaptive average pooling. The loss is
the same on a list of pixels, and the pooling the same as two small matrix products; both have
deterministic kernels. Bilinear resizing is decomposed by torch itself (2.1 and newer).
"""

import functools
import hashlib
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.registry import DATA_SAMPLERS, DATASETS
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d
from torch.utils.data import DataLoader

from mmseg_ext.errors import CheckpointError


def random_state() -> dict:
    """The states of Python's, NumPy's and torch's streams, that of CUDA's device included."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict) -> None:
    """The inverse of `random_state`; tensors may be on any device."""
    random.setstate(state["python"])
    kind, keys, position, *rest = state["numpy"]
    if not 0 <= position <= len(keys):  # NumPy does not check it, and would read other memory
        raise CheckpointError(f"random state: position {position} is outside 0 to {len(keys)}")
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), position, *rest))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the context, Python's, NumPy's and torch's CPU streams start at `seed` (64 bits).

    Outside, they go on as if nothing had been drawn.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def derive_seed(seed: int, what: str, number: int) -> int:
    """A seed of 63 bits for the `number`-th of `what`; unrelated for neighbouring numbers."""
    text = f"{seed} {what} {number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class SampleIndex(int):
    """The index of a sample with the seed of its augmentation."""

    seed: int

    def __new__(cls, index: int, seed: int):
        self = super().__new__(cls, index)
        self.seed = seed
        return self

    def __reduce__(self):
        return SampleIndex, (int(self), self.seed)


@DATA_SAMPLERS.register_module()
class PositionedInfiniteSampler(InfiniteSampler):
    """mmengine's `InfiniteSampler`, whose stream can start at any position at once.

    The stream is one permutation of the dataset after the other, each from the seed and its number;
    process r of n takes the positions r, r + n, r + 2n, ..., so that n processes with batches of b
    see the samples, and the augmentations, of one process with a batch of n b.
    """

    start = 0

    def skip(self, num_samples: int) -> None:
        """Start at this process's sample number `num_samples`, counted from the run's start."""
        self.start = num_samples

    def __iter__(self) -> Iterator[SampleIndex]:
        position = self.start * self.world_size + self.rank
        epoch, order = -1, []
        while True:
            if position // self.size != epoch:
                epoch = position // self.size
                order = self._order(epoch)
            yield SampleIndex(
                order[position % self.size], derive_seed(self.seed, "sample", position)
            )
            position += self.world_size

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.size))
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
        return torch.randperm(self.size, generator=generator).tolist()


@DATA_SAMPLERS.register_module()
class PositionedSampler(DefaultSampler):
    """mmengine's `DefaultSampler`, in its order, whose indices carry the seeds of their samples.

    Position p of epoch e in the stream of all processes is number e n + p of it, n being the
    epoch's length.
    """

    def __iter__(self) -> Iterator[SampleIndex]:
        start = self.epoch * self.total_size + self.rank
        for i, index in enumerate(super().__iter__()):
            yield SampleIndex(index, derive_seed(self.seed, "sample", start + i * self.world_size))


def positioned_sampler(loader: DataLoader) -> PositionedInfiniteSampler | PositionedSampler | None:
    """The sampler that seeds a loader's samples, also where a batch sampler has it; else None."""
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, PositionedInfiniteSampler | PositionedSampler):
            return sampler
    return None


_POSITIONED = {InfiniteSampler: PositionedInfiniteSampler, DefaultSampler: PositionedSampler}


class SeededSamples:
    """A dataset whose random draws for a `SampleIndex` start from its seed; else as the dataset."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __getattr__(self, name: str):
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int):
        if not isinstance(index, SampleIndex):
            return self._dataset[index]
        with seeded(index.seed):
            return self._dataset[int(index)]


def with_sample_seeds(dataloader: dict) -> dict:
    """A dataloader's settings with its sampler made positioned, and the dataset seeded.

    That is one of mmengine's, shuffling, which those of validation do not.
    """
    sampler, dataset = dataloader.get("sampler"), dataloader.get("dataset")
    if not (isinstance(sampler, dict) and isinstance(dataset, dict)):
        return dataloader
    kind = sampler["type"]
    kind = DATA_SAMPLERS.get(kind) if isinstance(kind, str) else kind
    kind = _POSITIONED.get(kind, kind)
    if kind not in _POSITIONED.values():
        return dataloader
    if kind is PositionedSampler and not sampler.get("shuffle", True):
        return dataloader
    dataset = DATASETS.build(dataset)
    if hasattr(dataset, "full_init"):
        dataset.full_init()
    sampler = {**sampler, "type": kind}
    return {**dataloader, "sampler": sampler, "dataset": SeededSamples(dataset)}


def isolate(loader: DataLoader) -> DataLoader:
    """Let `loader` draw nothing from the global stream, and its workers outlive a stop signal.

    A signal to the whole process group is for the training process to answer, which still needs
    its workers' batches to come to a clean end.
    """
    loader.generator = torch.Generator().manual_seed(0)
    loader.worker_init_fn = functools.partial(_start_worker, inner=loader.worker_init_fn)
    return loader


_GRACE_SECONDS = 5.0  # for the training process to take its last batch


def _leave_soon(number: int, frame) -> None:
    timer = threading.Timer(_GRACE_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _start_worker(worker_id: int, inner) -> None:
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):  # Ctrl-C goes to the whole group
        signal.signal(number, _leave_soon)
    if inner is not None:
        inner(worker_id)


_LOSSES = "mmseg.models.losses.cross_entropy_loss"  # imported where a model holds its loss


def cross_entropy_of_pixels(pred: Tensor, label: Tensor, weight: Tensor | None = None, **kwargs):
    """mmsegmentation's `cross_entropy` on a list of pixels: same arguments, same value.

    `pred` is (N, C, ...), `label` and `weight` (N, ...).
    """
    scores = pred.movedim(1, -1).reshape(-1, pred.shape[1])  # (N * pixels, C)
    weight = None if weight is None else weight.expand_as(label).reshape(-1)  # (N * pixels)
    loss = sys.modules[_LOSSES].cross_entropy(scores, label.reshape(-1), weight, **kwargs)
    return loss.view_as(label) if kwargs.get("reduction") == "none" else loss


class MatrixAvgPool2d(nn.AdaptiveAvgPool2d):
    """`nn.AdaptiveAvgPool2d` as a product from the left and one from the right."""

    def forward(self, x: Tensor) -> Tensor:
        size = self.output_size if isinstance(self.output_size, tuple) else (self.output_size,) * 2
        height, width = (out or side for out, side in zip(size, x.shape[-2:], strict=True))
        rows = _means(x.shape[-2], height, x)  # (height, H)
        columns = _means(x.shape[-1], width, x)  # (width, W)
        return rows @ x @ columns.T  # (B, C, height, width)


def _means(side: int, parts: int, like: Tensor) -> Tensor:
    """(parts, side): row i holds the weights of part i, which may overlap its neighbours."""
    return adaptive_avg_pool1d(torch.eye(side, dtype=like.dtype, device=like.device), parts).T


def make_deterministic(model: nn.Module) -> None:
    """Replace what torch's deterministic algorithms refuse on CUDA; the values stay the same.

    Also sets `CUBLAS_WORKSPACE_CONFIG`, which CUDA's matrix products need, where it is not set.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    losses = sys.modules.get(_LOSSES)
    for module in list(model.modules()):
        known = losses is not None and isinstance(module, losses.CrossEntropyLoss)
        if known and module.cls_criterion is losses.cross_entropy:
            module.cls_criterion = cross_entropy_of_pixels
        for name, child in module.named_children():
            if type(child) is nn.AdaptiveAvgPool2d:
                setattr(module, name, MatrixAvgPool2d(child.output_size))
