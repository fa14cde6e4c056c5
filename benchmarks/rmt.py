"""Print the tables of docs/rmt.md: RMT compared with its plain formulation."""

import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.reference.manhattan_attention import PlainRMT
from benchmarks.tables import Settings, command, timing_table
from mmseg_ext.backbones.rmt import ARCHS, RMT
from mmseg_ext.cost.timing import compare_times, inference_step, training_step


def backbones(archs: Sequence[str], shape: tuple[int, ...], step: Callable, settings: Settings):
    """Compare backbones in inference or training on images of a shape."""
    results = {}
    for arch in archs:
        model = RMT(arch).to(settings.device)
        x = torch.randn(shape, device=settings.device)
        ways = {"ours": step(model, x), "plain": step(PlainRMT(model), x)}
        case = f"{arch}, {' x '.join(map(str, shape))}"
        results[case] = compare_times(ways, settings.rounds, settings.device)
    return timing_table(results)


PARTS = {
    "inference": partial(backbones, ARCHS, (1, 3, 512, 512), inference_step),
    "training": partial(backbones, ARCHS, (2, 3, 512, 512), training_step),
    "cityscapes": partial(backbones, ["tiny"], (1, 3, 1024, 2048), inference_step),
}

if __name__ == "__main__":
    sys.exit(command("RMT against its plain formulation: time and memory.", PARTS))
