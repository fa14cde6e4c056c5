"""Judge trained networks and draw clouds by part: python -m projects.eat.evaluate RUN [RUN ...]

Classification: the share of test clouds whose class is found, over clouds and as the mean over
classes. Part segmentation: the mean over test clouds of the mean IoU of the parts that their class
has (a part that is neither there nor predicted counts 1), and the mean of that over classes, with
the most likely of all parts taken, as DGCNN's code does. No voting over scaled copies.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from projects import runs
from projects.eat.data import Clouds
from projects.eat.recipes import RECIPES, Recipe, read


def class_means(values: Tensor, labels: Tensor) -> Tensor:
    """Mean of values (n,) over each class that labels (n,) have."""
    return torch.stack([values[labels == label].mean() for label in labels.unique()])


def part_iou(predicted: Tensor, parts: Tensor, labels: Tensor, of_class: list[list[int]]) -> Tensor:
    """Mean IoU (n,) of each cloud over its class's parts; predicted and parts are (n, p)."""
    result = []
    for said, true, label in zip(predicted, parts, labels.tolist(), strict=True):
        part = torch.tensor(of_class[label])[:, None]
        both = ((said == part) & (true == part)).sum(1)
        either = ((said == part) | (true == part)).sum(1)
        result.append(torch.where(either == 0, 1.0, both / either.clamp_min(1)).mean())
    return torch.stack(result)


@torch.no_grad()
def predict(network: nn.Module, recipe: Recipe, clouds: Clouds, batch: int = 50) -> Tensor:
    """Classes (n,) or parts (n, p), in eval mode, of each cloud's first points.

    Raises:
        ValueError: for clouds that have fewer points than the recipe takes.
    """
    if clouds.points.shape[1] < recipe.points:
        raise ValueError(f"clouds have {clouds.points.shape[1]} points, {recipe.points} are needed")
    device = next(network.parameters()).device
    was_training = network.training
    network.eval()
    said = []
    for points, labels in zip(
        clouds.points[:, : recipe.points].split(batch), clouds.labels.split(batch), strict=True
    ):
        points = points.to(device)
        logits = network(points) if recipe.parts is None else network(points, labels.to(device))
        said.append(logits.argmax(-1).cpu())
    network.train(was_training)
    return torch.cat(said)


def judge(network: nn.Module, recipe: Recipe, clouds: Clouds) -> dict[str, float]:
    """The measures of the module's docstring."""
    said = predict(network, recipe, clouds)
    if recipe.parts is None:
        found = (said == clouds.labels).float()
        names = ("accuracy", "mean class accuracy")
    else:
        parts = clouds.parts[:, : recipe.points]
        found = part_iou(said, parts, clouds.labels, recipe.parts)
        names = ("part mIoU", "part mIoU by class")
    means = (found.mean(), class_means(found, clouds.labels).mean())
    return {name: mean.item() for name, mean in zip(names, means, strict=True)}


def load_network(folder: str | Path) -> tuple[nn.Module, dict]:
    """A run's network on the CPU in eval mode, and the run's settings."""
    content = runs.load(Path(folder))
    settings = content["settings"]
    network = RECIPES[settings["data"]].build(settings["attention"])
    network.load_state_dict(content["parts"]["network"])
    return network.eval(), settings


def draw(named: dict[str, Tensor], clouds: Clouds, path: str | Path) -> None:
    """One cloud of each class in a column, coloured by part; a row for each of `named` (n, p)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = [int((clouds.labels == label).nonzero()[0]) for label in clouds.labels.unique()][:8]
    size = (1.6 * len(first), 1.7 * len(named))
    figure, axes = plt.subplots(
        len(named), len(first), figsize=size, subplot_kw={"projection": "3d"}, squeeze=False
    )
    for row, (name, parts) in zip(axes, named.items(), strict=True):
        for axis, i in zip(row, first, strict=True):
            x, y, z = clouds.points[i, : parts.shape[1]].T.numpy()
            colours = parts[i].numpy() % 20
            axis.scatter(x, y, z, c=colours, cmap="tab20", vmin=0, vmax=19, s=4, alpha=1)
            axis.set_axis_off()
            axis.set_box_aspect((1, 1, 1), zoom=1.4)
        row[0].text2D(0, 1, name, transform=row[0].transAxes, fontsize=9)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=64)
    plt.close(figure)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m projects.eat.evaluate", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a training's folder")
    parser.add_argument("--folder", metavar="DIR", help="the dataset's HDF5 files")
    parser.add_argument("--figure", metavar="PNG", help="draw clouds by part (part segmentation)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = _arguments(argv)
    try:
        loaded = {folder: load_network(folder) for folder in arguments.runs}
        kinds = {settings["data"] for _, settings in loaded.values()}
        if len(kinds) > 1:
            raise ValueError(f"the runs are of different data: {', '.join(sorted(kinds))}")
        (data,) = kinds
        recipe = RECIPES[data]
        if arguments.figure and recipe.parts is None:
            raise ValueError(f"--figure draws parts, and {data} has none")
        _, test = read(data, arguments.folder)
        rows = {run: judge(network, recipe, test) for run, (network, _) in loaded.items()}
    except ValueError as error:
        raise SystemExit(str(error)) from error
    names = list(next(iter(rows.values())))
    table = Table("run", "attention", *names)
    for run, found in rows.items():
        table.add_row(run, loaded[run][1]["attention"], *(f"{found[n]:.1%}" for n in names))
    Console().print(table)
    if arguments.figure:
        named = {"true parts": test.parts[:, : recipe.points]}
        for network, settings in loaded.values():
            title = f"{settings['attention']} attention, seed {settings['seed']}"
            named[title] = predict(network, recipe, test)
        draw(named, test, arguments.figure)


if __name__ == "__main__":
    main()
