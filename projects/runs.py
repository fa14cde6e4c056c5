"""Training runs of the projects: a folder with a checkpoint to resume from."""

from pathlib import Path

import torch
from torch import Tensor

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.checkpoint.files import read_checkpoint

CHECKPOINT = "checkpoint.pth"


class Run:
    """A training run in a folder. A resumed run gives the result of an uninterrupted one.

    Args:
        settings: settings of the run; they must be the same when it resumes.
        parts: networks, optimizers and schedulers by name.
        resume: continue from the checkpoint in the folder.

    Attributes:
        position: number of completed steps or epochs.
        log: measurements.

    Raises:
        ValueError: if there is a checkpoint without `resume`, none with `resume`, or if the
            checkpoint has other settings.
    """

    def __init__(self, folder: Path, settings: dict, parts: dict, resume: bool):
        self.folder, self.settings, self.parts = folder, settings, parts
        self.position = 0
        self.log: list[dict] = []
        if resume:
            self._resume()
        elif (folder / CHECKPOINT).exists():
            raise ValueError(f"{folder}: has a checkpoint; use --resume or another --work-dir")
        folder.mkdir(parents=True, exist_ok=True)

    def _resume(self) -> None:
        content = load(self.folder)
        saved = content["settings"]
        differing = [name for name in self.settings if saved.get(name) != self.settings[name]]
        if differing:
            said = ", ".join(f"{n} {saved.get(n)!r}, not {self.settings[n]!r}" for n in differing)
            raise ValueError(f"{self.folder / CHECKPOINT}: belongs to another run with {said}")
        for name, part in self.parts.items():
            part.load_state_dict(content["parts"][name])
        torch.set_rng_state(content["random"]["cpu"])
        if "cuda" in content["random"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(content["random"]["cuda"])
        self.position, self.log = content["position"], content["log"]

    def measured(self, found: dict[str, float]) -> None:
        """Log and print measurements."""
        self.log.append({"position": self.position, **found})
        print(f"{self.position}:", ", ".join(f"{name} {n:.3f}" for name, n in found.items()))

    def save(self) -> None:
        """Write the checkpoint."""
        random = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            random["cuda"] = torch.cuda.get_rng_state()
        content = {
            "settings": self.settings,
            "position": self.position,
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "random": random,
            "log": self.log,
        }
        with atomic_write(self.folder / CHECKPOINT) as part:
            torch.save(content, part)


def load(folder: Path) -> dict:
    """Return the checkpoint of a run.

    Raises:
        ValueError: if there is none.
        CheckpointError: if it is damaged.
    """
    path = Path(folder, CHECKPOINT)
    if not path.is_file():
        raise ValueError(f"{folder}: has no {CHECKPOINT}; use the folder of a training run")
    return read_checkpoint(path)


def epoch_order(count: int, epoch: int, seed: int) -> Tensor:
    """Return the order of the samples, which depends only on the epoch and the seed."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)
