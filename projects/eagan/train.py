"""Train EAGAN or SAGAN: python -m projects.eagan.train --data shapes"""

import argparse
import time
from collections.abc import Collection
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from projects import runs
from projects.eagan.classifier import train_classifier
from projects.eagan.data import Pictures, to_float
from projects.eagan.evaluate import ClassifierJudge, generate
from projects.eagan.model import (
    Discriminator,
    Generator,
    discriminator_loss,
    generator_loss,
)
from projects.eagan.recipes import RECIPES, Recipe, read

_JUDGED = 2000  # pictures that are generated for each judgement during a training


class Batches:
    """Batch after batch of the pictures, each epoch in a new order, half of them mirrored."""

    def __init__(self, pictures: Pictures, batch: int, seed: int, device: torch.device):
        self.pictures = pictures
        self.batch = batch
        self.seed = seed
        self.device = device
        self.epoch = -1

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        """Batch number `index` since the start: pictures in [-1, 1] and labels."""
        epoch, within = divmod(index, len(self.pictures.images) // self.batch)
        if epoch != self.epoch:
            self.epoch = epoch
            self.order = runs.epoch_order(len(self.pictures.images), epoch, self.seed)
        chosen = self.order[within * self.batch : (within + 1) * self.batch]
        images = to_float(self.pictures.images[chosen])
        mirrored = torch.rand(self.batch) < 0.5
        images[mirrored] = images[mirrored].flip(3)
        return images.to(self.device), self.pictures.labels[chosen].to(self.device)


class Gan:
    """Both networks with their optimizers, and one step of either."""

    def __init__(self, recipe: Recipe, attention: str, device: torch.device):
        self.recipe = recipe
        self.device = device
        self.generator = Generator(recipe.architecture, attention).to(device)
        self.discriminator = Discriminator(recipe.architecture, attention).to(device)
        for_generator, for_discriminator = (
            torch.optim.Adam(network.parameters(), lr=rate, betas=recipe.betas, eps=1e-6)
            for network, rate in zip(
                (self.generator, self.discriminator), recipe.rates, strict=True
            )
        )
        self.for_generator, self.for_discriminator = for_generator, for_discriminator

    def parts(self) -> dict:
        return {
            "generator": self.generator,
            "discriminator": self.discriminator,
            "for_generator": self.for_generator,
            "for_discriminator": self.for_discriminator,
        }

    def _random_labels(self) -> Tensor:
        shape = (self.recipe.batch,)
        return torch.randint(self.recipe.architecture.num_classes, shape).to(self.device)

    def discriminator_step(self, images: Tensor, labels: Tensor) -> float:
        asked = self._random_labels()
        with torch.no_grad():
            generated = self.generator.sample(asked)
        loss = discriminator_loss(
            self.discriminator(images, labels), self.discriminator(generated, asked)
        )
        self.for_discriminator.zero_grad()
        loss.backward()
        self.for_discriminator.step()
        return loss.item()

    def generator_step(self) -> float:
        self.discriminator.requires_grad_(False)  # its gradients would be thrown away
        asked = self._random_labels()
        loss = generator_loss(self.discriminator(self.generator.sample(asked), asked))
        self.for_generator.zero_grad()
        loss.backward()
        self.for_generator.step()
        self.discriminator.requires_grad_(True)
        return loss.item()


def train(
    data: str,
    train_pictures: Pictures,
    test_pictures: Pictures,
    folder: Path,
    attention: str = "external",
    steps: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    save_every: int = 200,
    resume: bool = False,
    judged_after: Collection[float] = (),
    stop_after: int | None = None,
) -> list[dict]:
    """Train in `folder`; gives what was measured on the way.

    Args:
        steps: steps of the generator; the recipe's if not given.
        save_every: steps between checkpoints.
        resume: whether to go on from the folder's checkpoint.
        judged_after: parts of the steps after which a small classifier judges.
        stop_after: a step to stop after, with a checkpoint, as if the training had been cut.

    Raises:
        ValueError: for a folder with a checkpoint where `resume` is not set, or with none where it
            is, or with one of other settings.
    """
    recipe = RECIPES[data]
    steps = recipe.steps if steps is None else steps
    if steps < 1:
        raise ValueError(f"steps must be positive, got {steps}")
    settings = {"data": data, "attention": attention, "steps": steps, "seed": seed}
    folder.mkdir(parents=True, exist_ok=True)
    if not resume and (folder / runs.CHECKPOINT).exists():
        raise ValueError(
            f"{folder} holds a training: go on with --resume, or name another --work-dir"
        )
    torch.manual_seed(seed)
    gan = Gan(recipe, attention, torch.device(device))
    start, log = runs.resume(folder, settings, gan.parts()) if resume else (0, [])
    batches = Batches(train_pictures, recipe.batch, seed, gan.device)
    judged_steps = {max(1, round(part * steps)) for part in judged_after}
    classes = recipe.architecture.num_classes
    if judged_steps:
        judge = ClassifierJudge(train_classifier(train_pictures, classes), test_pictures)
    console = Console()
    began, cpu_began = time.monotonic(), time.process_time()
    with runs.progress_bar(console) as bar:
        task = bar.add_task(f"{attention} attention", total=steps, completed=start, loss="")
        for step in range(start, steps):
            for i in range(recipe.discriminator_steps):
                images, labels = batches(step * recipe.discriminator_steps + i)
                d_loss = gan.discriminator_step(images, labels)
            g_loss = gan.generator_step()
            done = step + 1
            bar.update(task, completed=done, loss=f"D {d_loss:.2f} G {g_loss:.2f}")
            if done in judged_steps:
                labels = torch.arange(_JUDGED) % classes
                found = judge(generate(gan.generator, labels), labels)
                spent = {
                    "seconds": time.monotonic() - began,
                    "cpu_seconds": time.process_time() - cpu_began,
                }
                log.append({"step": done, **found, **spent})
                console.print(
                    f"step {done}: distance {found['distance']:.2f}, "
                    f"asked class recognised {found['recognised']:.1%}, "
                    f"{spent['seconds']:.0f} s ({spent['cpu_seconds']:.0f} s of CPU)"
                )
            if done % save_every == 0 or done in (steps, stop_after):
                runs.save(folder, settings, done, gan.parts(), log)
            if done == stop_after:
                break
    return log


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m projects.eagan.train", description=__doc__)
    parser.add_argument("--data", choices=list(RECIPES), required=True)
    parser.add_argument("--archive", metavar="FILE", help="the dataset's official archive")
    parser.add_argument("--attention", choices=["external", "self"], default="external")
    parser.add_argument("--steps", type=int, help="of the generator; default: the recipe's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--work-dir", type=Path, metavar="DIR")
    parser.add_argument("--save-every", type=int, default=200, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = _arguments(argv)
    folder = arguments.work_dir or Path(
        "work_dirs", f"eagan_{arguments.data}_{arguments.attention}_seed{arguments.seed}"
    )
    try:
        train_pictures, test_pictures = read(arguments.data, arguments.archive)
        train(
            arguments.data,
            train_pictures,
            test_pictures,
            folder,
            arguments.attention,
            arguments.steps,
            arguments.seed,
            arguments.device,
            arguments.save_every,
            arguments.resume,
            judged_after=(0.1, 0.5, 1.0) if arguments.data == "shapes" else (),
        )
    except ValueError as error:
        raise SystemExit(str(error)) from error
    print(f"{folder / runs.CHECKPOINT}: python -m projects.eagan.evaluate {folder}")


if __name__ == "__main__":
    main()
