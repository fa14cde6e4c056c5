"""Judge a trained network: python -m projects.eat.evaluate RUN

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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m projects.eat.evaluate", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a training's folder")
    parser.add_argument("--folder", metavar="DIR", help="the dataset's HDF5 files")
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


if __name__ == "__main__":
    main()
