"""Train EAT or PCT: python -m projects.eat.train --data solids"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

from projects import runs
from projects.eat.data import Clouds, augmented
from projects.eat.evaluate import judge
from projects.eat.recipes import RECIPES, Recipe, read


def loss_of(network: nn.Module, recipe: Recipe, clouds: Clouds, device: torch.device) -> Tensor:
    """Return the cross-entropy of a batch after random augmentation."""
    chosen = torch.randperm(recipe.points)  # the first points, as PCT_Pytorch takes, in any order
    points = augmented(clouds.points[:, chosen], recipe.drop).to(device)
    labels = clouds.labels.to(device)
    if recipe.parts is None:
        return F.cross_entropy(network(points), labels, label_smoothing=recipe.smoothing)
    logits = network(points, labels)
    return F.cross_entropy(logits.flatten(0, 1), clouds.parts[:, chosen].flatten().to(device))


def train(
    data: str,
    train_clouds: Clouds,
    test_clouds: Clouds,
    folder: Path,
    attention: str = "external",
    epochs: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    resume: bool = False,
) -> list[dict]:
    """Train in `folder` with a checkpoint after each epoch, and return the measurements.

    Args:
        epochs: number of epochs; None uses the recipe's.
        resume: continue from the checkpoint in the folder.

    Raises:
        ValueError: as `runs.Run`.
    """
    recipe = RECIPES[data]
    epochs = recipe.epochs if epochs is None else epochs
    settings = {"data": data, "attention": attention, "epochs": epochs, "seed": seed}
    torch.manual_seed(seed)
    network = recipe.build(attention).to(device)
    if recipe.adam:
        optimizer = torch.optim.Adam(network.parameters(), recipe.rates[0])
    else:
        optimizer = torch.optim.SGD(network.parameters(), recipe.rates[0], 0.9, weight_decay=5e-4)
    batches = len(train_clouds.points) // recipe.batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, epochs * batches, recipe.rates[1]
    )
    parts = {"network": network, "optimizer": optimizer, "schedule": schedule}
    run = runs.Run(folder, settings, parts, resume)
    for epoch in range(run.position, epochs):
        order = runs.epoch_order(len(train_clouds.points), epoch, seed)
        chosen_batches = order[: batches * recipe.batch].split(recipe.batch)
        for chosen in track(chosen_batches, f"{attention} attention, epoch {epoch + 1}"):
            batch = Clouds(*(None if x is None else x[chosen] for x in train_clouds))
            loss = loss_of(network, recipe, batch, torch.device(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        run.position = epoch + 1
        run.measured(judge(network, recipe, test_clouds))
        run.save()
    return run.log


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m projects.eat.train", description=__doc__)
    parser.add_argument("--data", choices=list(RECIPES), required=True)
    parser.add_argument("--folder", metavar="DIR", help="folder with the HDF5 files of the dataset")
    parser.add_argument("--attention", choices=["external", "self"], default="external")
    parser.add_argument("--epochs", type=int, help="number of epochs (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--work-dir", type=Path, metavar="DIR")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    args = vars(parser.parse_args(argv))
    name = "eat_{data}_{attention}_seed{seed}".format(**args)
    folder = args.pop("work_dir") or Path("work_dirs", name)
    try:
        clouds = read(args["data"], args.pop("folder"))
        train(args.pop("data"), *clouds, folder, **args)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    print(f"{folder}: python -m projects.eat.evaluate {folder}")


if __name__ == "__main__":
    main()
