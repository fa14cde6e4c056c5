"""What the trainings of the projects share: checkpoints to resume from exactly, and progress."""

from pathlib import Path

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor

from mmseg_ext.checkpoint.safe_reading import read_checkpoint
from mmseg_ext.checkpoint.writing import write_checkpoint

CHECKPOINT = "checkpoint.pth"


def save(folder: Path, settings: dict, position: int, parts: dict, log: list[dict]) -> None:
    """Write `checkpoint.pth`: it resumes at `position` with the state of parts and generators.

    Args:
        settings: what makes the run; a resumed one must have the same.
        position: steps or epochs that are done.
        parts: networks, optimizers and schedulers by name.
        log: what was measured so far.
    """
    content = {
        "settings": settings,
        "position": position,
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "random": _random_state(),
        "log": log,
    }
    write_checkpoint(content, folder / CHECKPOINT)


def load(folder: Path) -> dict:
    """The content of a run's checkpoint.

    Raises:
        ValueError: where there is none.
        CheckpointError: for a damaged one.
    """
    path = Path(folder, CHECKPOINT)
    if not path.is_file():
        raise ValueError(f"{folder} holds no {CHECKPOINT}: name the folder of a training")
    return read_checkpoint(path)


def resume(folder: Path, settings: dict, parts: dict) -> tuple[int, list[dict]]:
    """Put parts and generators into the state of the checkpoint; gives its position and log.

    Raises:
        ValueError: where the checkpoint's run has other settings, naming them.
    """
    content = load(folder)
    saved = content["settings"]
    differing = [name for name in settings if saved.get(name) != settings[name]]
    if differing:
        said = ", ".join(f"{n} {saved.get(n)!r}, not {settings[n]!r}" for n in differing)
        raise ValueError(f"{folder / CHECKPOINT} is of another run: {said}")
    for name, part in parts.items():
        part.load_state_dict(content["parts"][name])
    _set_random_state(content["random"])
    return content["position"], content["log"]


def _random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def epoch_order(count: int, epoch: int, seed: int) -> Tensor:
    """The order of the samples in an epoch; it depends on nothing else, so resuming is exact."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


def progress_bar(console: Console) -> Progress:
    """A bar with the count, the time that has passed and the time that is left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
        console=console,
    )
