"""Write the samples of a trained generator as PNG files: python -m projects.eagan.evaluate RUN

It writes samples to RUN/generated and test images to RUN/real, for programs that compute FID and
the inception score. For `shapes`, a small classifier also evaluates the samples.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from projects import runs
from projects.eagan.classifier import train_classifier
from projects.eagan.data import to_uint8
from projects.eagan.model import Generator
from projects.eagan.recipes import RECIPES, read


@torch.no_grad()
def generate(generator: Generator, labels: Tensor, seed: int = 0, batch: int = 250) -> Tensor:
    """Generate uint8 images (N, 3, H, W) for labels (N,) in eval mode."""
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


def load_generator(folder: Path) -> tuple[Generator, dict]:
    """Return the generator of a run, on the CPU in eval mode, and the settings of the run."""
    content = runs.load(folder)
    settings = content["settings"]
    generator = Generator(RECIPES[settings["data"]].architecture, settings["attention"])
    generator.load_state_dict(content["parts"]["generator"])
    return generator.eval(), settings


def write_pictures(images: Tensor, folder: Path) -> None:
    """Write uint8 images (N, 3, H, W) as `00000.png`, `00001.png`, ..."""
    folder.mkdir(exist_ok=True)
    for i, image in enumerate(images.permute(0, 2, 3, 1).numpy()):
        Image.fromarray(image).save(folder / f"{i:05}.png")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m projects.eagan.evaluate", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a training run")
    parser.add_argument("--archive", metavar="FILE", help="official archive of the dataset")
    parser.add_argument(
        "--samples", type=int, help="number of samples (default: 10,000; 2,000 for shapes)"
    )
    args = parser.parse_args(argv)
    try:
        generator, settings = load_generator(args.run)
        train, test = read(settings["data"], args.archive)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    on_shapes = settings["data"] == "shapes"
    samples = args.samples or (2000 if on_shapes else 10_000)
    labels = torch.arange(samples) % generator.num_classes
    images = generate(generator, labels)
    write_pictures(images, args.run / "generated")
    write_pictures(test.images, args.run / "real")
    print(f"{samples} samples in {args.run / 'generated'}, test pictures in {args.run / 'real'}")
    if on_shapes:
        classifier = train_classifier(train, generator.num_classes)
        for name, value in classifier.judge(images, labels, test.images).items():
            print(f"{name} {value:.3f}")


if __name__ == "__main__":
    main()
