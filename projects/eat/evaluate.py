"""Evaluate a trained network: python -m projects.eat.evaluate RUN

Classification: accuracy on the test clouds. Part segmentation: the mean over test clouds of the
mean IoU over the parts of their class. A part that is neither present nor predicted counts 1. As in
DGCNN's code, predictions may be any part of any class. There is no voting over scaled copies.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from projects import runs
from projects.eat.data import Clouds
from projects.eat.recipes import RECIPES, Recipe, read


def part_iou(predicted: Tensor, parts: Tensor, labels: Tensor, of_class: list[list[int]]) -> Tensor:
    """Return the mean IoU (n,) of each cloud over the parts of its class, for parts (n, p)."""
    result = []
    for said, true, label in zip(predicted, parts, labels.tolist(), strict=True):
        part = torch.tensor(of_class[label])[:, None]
        both = ((said == part) & (true == part)).sum(1)
        either = ((said == part) | (true == part)).sum(1)
        result.append(torch.where(either == 0, 1.0, both / either.clamp_min(1)).mean())
    return torch.stack(result)


@torch.no_grad()
def predict(network: nn.Module, recipe: Recipe, clouds: Clouds, batch: int = 50) -> Tensor:
    """Predict classes (n,) or parts (n, p) in eval mode from the first points of each cloud."""
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
    """Return accuracy or mean IoU, as defined above."""
    said = predict(network, recipe, clouds)
    if recipe.parts is None:
        return {"accuracy": (said == clouds.labels).float().mean().item()}
    parts = clouds.parts[:, : recipe.points]
    return {"part mIoU": part_iou(said, parts, clouds.labels, recipe.parts).mean().item()}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m projects.eat.evaluate", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a training run")
    parser.add_argument("--folder", metavar="DIR", help="folder with the HDF5 files of the dataset")
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
