"""Judge a trained network and draw clouds by part: python -m projects.eat.evaluate RUN

Classification: the share of test clouds whose class is found. Part segmentation: the mean over test
clouds of the mean IoU of the parts that their class has (a part that is neither there nor predicted
counts 1), with the most likely of all parts taken, as DGCNN's code does. No voting over scaled
copies.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from projects import runs
from projects.eat.data import Clouds
from projects.eat.recipes import RECIPES, Recipe, read


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
    """Classes (n,) or parts (n, p), in eval mode, of each cloud's first points."""
    device = next(network.parameters()).device
    was_training = network.training
    network.eval()
    said = []
    points = clouds.points[:, : recipe.points]
    for some, labels in zip(points.split(batch), clouds.labels.split(batch), strict=True):
        some = some.to(device)
        logits = network(some) if recipe.parts is None else network(some, labels.to(device))
        said.append(logits.argmax(-1).cpu())
    network.train(was_training)
    return torch.cat(said)


def judge(network: nn.Module, recipe: Recipe, clouds: Clouds) -> dict[str, float]:
    """The measure of the module's docstring."""
    said = predict(network, recipe, clouds)
    if recipe.parts is None:
        return {"accuracy": (said == clouds.labels).float().mean().item()}
    parts = clouds.parts[:, : recipe.points]
    return {"part mIoU": part_iou(said, parts, clouds.labels, recipe.parts).mean().item()}


def draw(named: dict[str, Tensor], clouds: Clouds, path: str | Path) -> None:
    """One cloud of each class in a column, coloured by part; a row for each of `named` (n, p)."""
    from matplotlib.figure import Figure

    first = [int((clouds.labels == label).nonzero()[0]) for label in clouds.labels.unique()][:8]
    figure = Figure(figsize=(1.6 * len(first), 1.7 * len(named)), layout="tight")
    shape = (len(named), len(first))
    axes = figure.subplots(*shape, subplot_kw={"projection": "3d"}, squeeze=False)
    for row, (name, parts) in zip(axes, named.items(), strict=True):
        for axis, i in zip(row, first, strict=True):
            x, y, z = clouds.points[i, : parts.shape[1]].T.numpy()
            colours = parts[i].numpy() % 20
            axis.scatter(x, y, z, c=colours, cmap="tab20", vmin=0, vmax=19, s=4, alpha=1)
            axis.set_axis_off()
            axis.set_box_aspect((1, 1, 1), zoom=1.4)
        row[0].text2D(0, 1, name, transform=row[0].transAxes, fontsize=9)
    figure.savefig(path, dpi=64)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m projects.eat.evaluate", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a training's folder")
    parser.add_argument("--folder", metavar="DIR", help="the dataset's HDF5 files")
    parser.add_argument("--figure", metavar="PNG", help="draw clouds by part (part segmentation)")
    args = parser.parse_args(argv)
    try:
        content = runs.load(args.run)
        settings = content["settings"]
        recipe = RECIPES[settings["data"]]
        network = recipe.build(settings["attention"])
        network.load_state_dict(content["parts"]["network"])
        _, test = read(settings["data"], args.folder)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    for name, value in judge(network, recipe, test).items():
        print(f"{name} {value:.1%}")
    if args.figure:
        if recipe.parts is None:
            raise SystemExit(f"--figure draws parts, and {settings['data']} has none")
        title = f"{settings['attention']} attention"
        true = test.parts[:, : recipe.points]
        draw({"true parts": true, title: predict(network, recipe, test)}, test, args.figure)


if __name__ == "__main__":
    main()
