"""Train EAT or PCT: python -m projects.eat.train --data solids"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from projects import runs
from projects.eat.data import Clouds, augmented
from projects.eat.evaluate import judge
from projects.eat.recipes import RECIPES, Recipe, read


def loss_of(network: nn.Module, recipe: Recipe, clouds: Clouds, device: torch.device) -> Tensor:
    """Cross-entropy of one batch, its clouds scaled and moved at random."""
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
    stop_after: int | None = None,
) -> list[dict]:
    """Train in `folder`, with a checkpoint after each epoch; gives what was measured.

    Args:
        epochs: the recipe's if not given.
        resume: whether to go on from the folder's checkpoint.
        stop_after: an epoch to stop after, as if the training had been cut.

    Raises:
        ValueError: for a folder with a checkpoint where `resume` is not set, or with none where it
            is, or with one of other settings; for clouds with fewer points than the recipe takes.
    """
    recipe = RECIPES[data]
    epochs = recipe.epochs if epochs is None else epochs
    if epochs < 1:
        raise ValueError(f"epochs must be positive, got {epochs}")
    settings = {"data": data, "attention": attention, "epochs": epochs, "seed": seed}
    if train_clouds.points.shape[1] < recipe.points:
        count = train_clouds.points.shape[1]
        raise ValueError(f"clouds have {count} points, {recipe.points} are needed")
    folder.mkdir(parents=True, exist_ok=True)
    if not resume and (folder / runs.CHECKPOINT).exists():
        raise ValueError(
            f"{folder} holds a training: go on with --resume, or name another --work-dir"
        )
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
    start, log = runs.resume(folder, settings, parts) if resume else (0, [])
    console = Console()
    began, cpu_began = time.monotonic(), time.process_time()
    with runs.progress_bar(console) as bar:
        task = bar.add_task(
            f"{attention} attention", total=epochs * batches, completed=start * batches, loss=""
        )
        for epoch in range(start, epochs):
            order = runs.epoch_order(len(train_clouds.points), epoch, seed)
            for chosen in order[: batches * recipe.batch].split(recipe.batch):
                batch = Clouds(*(None if x is None else x[chosen] for x in train_clouds))
                loss = loss_of(network, recipe, batch, torch.device(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update(task, advance=1, loss=f"loss {loss.item():.3f}")
            found = judge(network, recipe, test_clouds)
            spent = {
                "seconds": time.monotonic() - began,
                "cpu_seconds": time.process_time() - cpu_began,
            }
            log.append({"epoch": epoch + 1, **found, **spent})
            measures = ", ".join(f"{name} {value:.1%}" for name, value in found.items())
            console.print(
                f"epoch {epoch + 1}: {measures}, "
                f"{spent['seconds']:.0f} s ({spent['cpu_seconds']:.0f} s of CPU)"
            )
            runs.save(folder, settings, epoch + 1, parts, log)
            if epoch + 1 == stop_after:
                break
    return log


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m projects.eat.train", description=__doc__)
    parser.add_argument("--data", choices=list(RECIPES), required=True)
    parser.add_argument("--folder", metavar="DIR", help="the dataset's HDF5 files")
    parser.add_argument("--attention", choices=["external", "self"], default="external")
    parser.add_argument("--epochs", type=int, help="default: the recipe's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--work-dir", type=Path, metavar="DIR")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = _arguments(argv)
    folder = arguments.work_dir or Path(
        "work_dirs", f"eat_{arguments.data}_{arguments.attention}_seed{arguments.seed}"
    )
    try:
        train_clouds, test_clouds = read(arguments.data, arguments.folder)
        train(
            arguments.data,
            train_clouds,
            test_clouds,
            folder,
            arguments.attention,
            arguments.epochs,
            arguments.seed,
            arguments.device,
            arguments.resume,
        )
    except ValueError as error:
        raise SystemExit(str(error)) from error
    print(f"{folder / runs.CHECKPOINT}: python -m projects.eat.evaluate {folder}")


if __name__ == "__main__":
    main()
