"""Print the tables of docs/rmt.md: RMT compared with its plain formulation."""

from collections.abc import Iterator

import torch

from benchmarks.reference.manhattan_attention import PlainRMT
from benchmarks.tables import Case, command, timed
from mmseg_ext.backbones import RMT


def backbone(shape: tuple[int, ...], mode: str) -> Iterator[Case]:
    """Compare the smallest backbone in inference or training on images of a shape."""
    model, name = RMT("tiny"), f"tiny, {' x '.join(map(str, shape))}"
    yield Case(name, {"ours": model, "plain": PlainRMT(model)}, torch.randn(shape), [mode])


PARTS = {
    "inference": timed(backbone, (1, 3, 512, 512), "inference"),
    "training": timed(backbone, (2, 3, 512, 512), "training"),
    "cityscapes": timed(backbone, (1, 3, 1024, 2048), "inference"),
}

if __name__ == "__main__":
    command("RMT against its plain formulation: time and memory.", PARTS)
