"""The tables of docs/rmt.md: RMT against its plain formulation."""

import sys
from collections.abc import Sequence

import torch

from benchmarks.reference.manhattan_attention import PlainRMT
from benchmarks.tables import Results, Settings, command, contest_table
from mmseg_ext.backbones.rmt import ARCHS, RMT
from mmseg_ext.cost.contest import contest, inference_step, training_step


def inference(settings: Settings):
    """Every arch on an image of 512x512."""
    return contest_table(_backbones(ARCHS, (1, 3, 512, 512), inference_step, settings))


def training(settings: Settings):
    """Every arch, forward and backward on two images of 512x512."""
    return contest_table(_backbones(ARCHS, (2, 3, 512, 512), training_step, settings))


def cityscapes(settings: Settings):
    """`tiny` on an image of 1024x2048."""
    return contest_table(_backbones(["tiny"], (1, 3, 1024, 2048), inference_step, settings))


def _backbones(archs: Sequence[str], shape: tuple[int, ...], step, settings: Settings) -> Results:
    results = {}
    for arch in archs:
        model = RMT(arch).to(settings.device)
        x = torch.randn(shape, device=settings.device)
        ways = {"ours": step(model, x), "plain": step(PlainRMT(model), x)}
        case = f"{arch}, {' x '.join(map(str, shape))}"
        results[case] = contest(ways, settings.rounds, settings.device)
    return results


PARTS = {
    "inference": inference,
    "training": training,
    "cityscapes": cityscapes,
}

if __name__ == "__main__":
    sys.exit(command("RMT against its plain formulation: time and memory.", PARTS))
