"""Judge trained generators and show their pictures: python -m projects.eagan.evaluate RUN [RUN ...]

With --inception-weights FILE (pytorch-fid's `pt_inception-2015-12-05-6726825d.pth`, which is not
downloaded) this prints FID and inception score as PyTorch-StudioGAN computes them: 10,000 generated
pictures, rounded to 8 bits, against the test pictures. Without it, a Frechet distance on the
features of a small classifier, which is not called FID, and how often that classifier recognises
the class that was asked for.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from mmseg_ext.checkpoint import read_state_dict
from projects import runs
from projects.eagan.classifier import Classifier, train_classifier
from projects.eagan.data import Pictures, to_uint8
from projects.eagan.frechet import (
    Statistics,
    frechet_distance,
    inception_score,
    read_statistics,
    statistics,
    write_statistics,
)
from projects.eagan.inception import Inception
from projects.eagan.model import Generator
from projects.eagan.recipes import RECIPES, read


@torch.no_grad()
def generate(generator: Generator, labels: Tensor, seed: int = 0, batch: int = 250) -> Tensor:
    """uint8 pictures (N, 3, H, W) of the labels (N,), in eval mode, from the seed's latents."""
    device = next(generator.parameters()).device
    was_training = generator.training
    generator.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        latents = torch.randn(len(labels), generator.first.in_features)
    pictures = [
        to_uint8(generator(z.to(device), y.to(device))).cpu()
        for z, y in zip(latents.split(batch), labels.split(batch), strict=True)
    ]
    generator.train(was_training)
    return torch.cat(pictures)


@torch.no_grad()
def _through(network: nn.Module, images: Tensor, batch: int, what: str = "") -> list:
    batches = images.split(batch)
    return [network(x) for x in (track(batches, what, transient=True) if what else batches)]


class ClassifierJudge:
    """Frechet distance and recognition by a small classifier."""

    def __init__(self, classifier: Classifier, test: Pictures):
        self.classifier = classifier
        self.real = statistics(torch.cat(_through(classifier, test.images, 500)))

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        """`distance` to the test pictures, and `recognised`, the share whose class is `labels`."""
        features = torch.cat(_through(self.classifier, images, 500))
        said = self.classifier.classes(features).argmax(1)
        return {
            "distance": frechet_distance(statistics(features), self.real),
            "recognised": (said == labels).float().mean().item(),
        }


class InceptionJudge:
    """FID and inception score by the published Inception weights."""

    def __init__(self, inception: Inception, real: Statistics):
        self.inception = inception
        self.real = real

    def __call__(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        features = _through(self.inception, images, 50, "Inception features, generated")
        features = torch.cat(features)
        return {
            "FID": frechet_distance(statistics(features), self.real),
            "IS": inception_score(self.inception.fc(features)),
        }


def load_generator(folder: str | Path) -> tuple[Generator, dict]:
    """A run's generator on the CPU in eval mode, and the run's settings."""
    content = runs.load(Path(folder))
    settings = content["settings"]
    generator = Generator(RECIPES[settings["data"]].architecture, settings["attention"])
    generator.load_state_dict(content["parts"]["generator"])
    return generator.eval(), settings


def load_inception(path: str | Path) -> Inception:
    """The Inception network with the weights that pytorch-fid publishes.

    Raises:
        ValueError: for a file that is missing or holds other weights.
    """
    inception = Inception()
    try:
        inception.load_state_dict(read_state_dict(path))
    except FileNotFoundError as error:
        raise ValueError(f"--inception-weights {path}: no such file") from error
    except RuntimeError as error:
        raise ValueError(
            f"--inception-weights {path}: not pytorch-fid's Inception weights "
            "(pt_inception-2015-12-05-6726825d.pth from github.com/mseitzer/pytorch-fid/releases)"
        ) from error
    return inception.eval().requires_grad_(False)


def draw(generators: dict[str, Generator], path: str | Path, columns: int = 8) -> None:
    """Samples of each generator side by side: one row for each of the first ten classes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(generators), figsize=(4 * len(generators), 5.3), squeeze=False
    )
    for axis, (name, generator) in zip(axes[0], generators.items(), strict=True):
        rows = min(10, generator.num_classes)
        labels = torch.arange(rows).repeat_interleave(columns)
        images = generate(generator, labels)
        grid = (
            images.unflatten(0, (rows, columns)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
        )
        axis.imshow(grid.numpy(), interpolation="nearest")
        axis.set_title(name)
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=64)
    plt.close(figure)


def _judge(arguments: argparse.Namespace, data: str) -> ClassifierJudge | InceptionJudge:
    weights, given = arguments.inception_weights, arguments.statistics
    if weights is None:
        for name in ("statistics", "save_statistics"):
            if getattr(arguments, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag} is of Inception features: name --inception-weights too")
        train, test = read(data, arguments.archive)
        number = RECIPES[data].architecture.num_classes
        return ClassifierJudge(train_classifier(train, number), test)
    inception = load_inception(weights)
    if given is not None:
        return InceptionJudge(inception, read_statistics(given))
    _, test = read(data, arguments.archive)
    features = _through(inception, test.images, 50, "Inception features, real")
    real = statistics(torch.cat(features))
    if arguments.save_statistics is not None:
        write_statistics(real, arguments.save_statistics)
    return InceptionJudge(inception, real)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m projects.eagan.evaluate", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a training's folder")
    parser.add_argument("--archive", metavar="FILE", help="the dataset's official archive")
    parser.add_argument("--samples", type=int, help="default: 10,000, or 2,000 of shapes")
    parser.add_argument("--inception-weights", metavar="FILE")
    parser.add_argument("--statistics", metavar="NPZ", help="of the real pictures, instead of them")
    parser.add_argument("--save-statistics", metavar="NPZ")
    parser.add_argument("--figure", metavar="PNG", help="draw samples of the runs side by side")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = _arguments(argv)
    try:
        loaded = {folder: load_generator(folder) for folder in arguments.runs}
        kinds = {settings["data"] for _, settings in loaded.values()}
        if len(kinds) > 1:
            raise ValueError(f"the runs are of different data: {', '.join(sorted(kinds))}")
        (data,) = kinds
        judge = _judge(arguments, data)
        architecture = RECIPES[data].architecture
        samples = arguments.samples or (2000 if data == "shapes" else 10_000)
        labels = torch.arange(samples) % architecture.num_classes
        rows = {run: judge(generate(g, labels), labels) for run, (g, _) in loaded.items()}
    except ValueError as error:
        raise SystemExit(str(error)) from error
    names = list(next(iter(rows.values())))
    table = Table("run", "attention", *names)
    for run, found in rows.items():
        values = (f"{found[name]:.3f}" for name in names)
        table.add_row(run, loaded[run][1]["attention"], *values)
    Console().print(table)
    if arguments.figure is not None:
        named = {f"{s['attention']} attention, seed {s['seed']}": g for g, s in loaded.values()}
        draw(named, arguments.figure)


if __name__ == "__main__":
    main()
