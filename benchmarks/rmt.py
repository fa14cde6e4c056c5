"""Print the tables of docs/rmt.md: RMT compared with its plain formulation."""

import sys
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.reference.manhattan_attention import PlainRMT
from benchmarks.tables import Settings, command, time_modules, timing_table
from mmseg_ext.backbones.rmt import ARCHS, RMT


def backbones(archs: Sequence[str], shape: tuple[int, ...], mode: str, settings: Settings):
    """Compare backbones in inference or training on images of a shape."""
    results = {}
    for arch in archs:
        model, case = RMT(arch), f"{arch}, {' x '.join(map(str, shape))}"
        ways = {"ours": model, "plain": PlainRMT(model)}
        results |= time_modules(case, ways, torch.randn(shape), settings, [mode])
    return timing_table(results)


PARTS = {
    "inference": partial(backbones, ARCHS, (1, 3, 512, 512), "inference"),
    "training": partial(backbones, ARCHS, (2, 3, 512, 512), "training"),
    "cityscapes": partial(backbones, ["tiny"], (1, 3, 1024, 2048), "inference"),
}

if __name__ == "__main__":
    sys.exit(command("RMT against its plain formulation: time and memory.", PARTS))
