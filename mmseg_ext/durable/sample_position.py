"""The position of a run in its samples, in checkpoints and when a run continues.

The seed and the position determine the order of the samples and their augmentation; `randomness`
has the samplers. A loop by iterations finds the position itself and skips to it. A loop by epochs
starts the epoch again, so the sampler leaves out the samples that were used.
"""

from logging import Logger
from typing import Any

from torch.utils.data import DataLoader

from mmseg_ext.durable.randomness import positioned_sampler


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
