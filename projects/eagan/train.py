"""Train EAGAN or SAGAN: python -m projects.eagan.train --data shapes"""

import argparse
from collections.abc import Collection
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor

from projects import runs
from projects.eagan.classifier import train_classifier
from projects.eagan.data import Pictures, to_float
from projects.eagan.evaluate import generate
from projects.eagan.model import (
    Discriminator,
    Generator,
    discriminator_loss,
    generator_loss,
)
from projects.eagan.recipes import RECIPES, Recipe, read

_JUDGED = 2000  # pictures that are generated for each judgement during a training


class Batches:
    """Batches of images in a new order for each epoch, with random horizontal flips."""

    def __init__(self, pictures: Pictures, batch: int, seed: int, device: torch.device):
        self.pictures = pictures
        self.batch = batch
        self.seed = seed
        self.device = device
        self.epoch = -1

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return batch `index`, counted from the start: images in [-1, 1] and labels."""
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
    """Both networks, their optimizers, and a training step for each."""

    def __init__(self, recipe: Recipe, attention: str, device: torch.device):
        self.recipe = recipe
        self.device = device
        self.generator = Generator(recipe.architecture, attention).to(device)
        self.discriminator = Discriminator(recipe.architecture, attention).to(device)
        options = {"betas": recipe.betas, "eps": 1e-6}
        rates = recipe.rates
        self.for_generator = torch.optim.Adam(self.generator.parameters(), rates[0], **options)
        self.for_discriminator = torch.optim.Adam(
            self.discriminator.parameters(), rates[1], **options
        )

    def parts(self) -> dict:
        names = ("generator", "discriminator", "for_generator", "for_discriminator")
        return {name: getattr(self, name) for name in names}

    def _random_labels(self) -> Tensor:
        shape = (self.recipe.batch,)
        return torch.randint(self.recipe.architecture.num_classes, shape).to(self.device)

    def discriminator_step(self, images: Tensor, labels: Tensor) -> None:
        asked = self._random_labels()
        with torch.no_grad():
            generated = self.generator.sample(asked)
        loss = discriminator_loss(
            self.discriminator(images, labels), self.discriminator(generated, asked)
        )
        self.for_discriminator.zero_grad()
        loss.backward()
        self.for_discriminator.step()

    def generator_step(self) -> None:
        self.discriminator.requires_grad_(False)  # its gradients would be thrown away
        asked = self._random_labels()
        loss = generator_loss(self.discriminator(self.generator.sample(asked), asked))
        self.for_generator.zero_grad()
        loss.backward()
        self.for_generator.step()
        self.discriminator.requires_grad_(True)


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
) -> list[dict]:
    """Train in `folder`, and return the measurements.

    Args:
        steps: steps of the generator; None uses the recipe's.
        save_every: steps between checkpoints.
        resume: continue from the checkpoint in the folder.
        judged_after: fractions of the steps after which a small classifier evaluates.

    Raises:
        ValueError: as `runs.Run`.
    """
    recipe = RECIPES[data]
    steps = recipe.steps if steps is None else steps
    settings = {"data": data, "attention": attention, "steps": steps, "seed": seed}
    torch.manual_seed(seed)
    gan = Gan(recipe, attention, torch.device(device))
    run = runs.Run(folder, settings, gan.parts(), resume)
    batches = Batches(train_pictures, recipe.batch, seed, gan.device)
    classes = recipe.architecture.num_classes
    judged_steps = {max(1, round(part * steps)) for part in judged_after}
    if judged_steps:
        classifier = train_classifier(train_pictures, classes)
    for step in track(range(run.position, steps), f"{attention} attention"):
        for i in range(recipe.discriminator_steps):
            gan.discriminator_step(*batches(step * recipe.discriminator_steps + i))
        gan.generator_step()
        run.position = step + 1
        if run.position in judged_steps:
            labels = torch.arange(_JUDGED) % classes
            images = generate(gan.generator, labels)
            run.measured(classifier.judge(images, labels, test_pictures.images))
        if run.position % save_every == 0 or run.position == steps:
            run.save()
    return run.log


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m projects.eagan.train", description=__doc__)
    parser.add_argument("--data", choices=list(RECIPES), required=True)
    parser.add_argument("--archive", metavar="FILE", help="official archive of the dataset")
    parser.add_argument("--attention", choices=["external", "self"], default="external")
    parser.add_argument("--steps", type=int, help="steps of the generator (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--work-dir", type=Path, metavar="DIR")
    parser.add_argument("--save-every", type=int, default=200, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    args = vars(parser.parse_args(argv))
    name = "eagan_{data}_{attention}_seed{seed}".format(**args)
    folder = args.pop("work_dir") or Path("work_dirs", name)
    try:
        pictures = read(args["data"], args.pop("archive"))
        judged_after = (0.1, 0.5, 1) if args["data"] == "shapes" else ()
        train(args.pop("data"), *pictures, folder, **args, judged_after=judged_after)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    print(f"{folder}: python -m projects.eagan.evaluate {folder}")


if __name__ == "__main__":
    main()
