"""Print the tables of docs/rmt.md: RMT compared with its plain formulation."""

from collections.abc import Iterator, Sequence

import torch

from benchmarks.reference.manhattan_attention import PlainRMT
from benchmarks.tables import Case, command, timed
from mmseg_ext.backbones.rmt import ARCHS, RMT
from mmseg_ext.layers import ManhattanAttention


def backbones(archs: Sequence[str], shape: tuple[int, ...], mode: str) -> Iterator[Case]:
    """Compare backbones in inference or training on images of a shape."""
    for arch in archs:
        model, name = RMT(arch), f"{arch}, {' x '.join(map(str, shape))}"
        yield Case(name, {"ours": model, "plain": PlainRMT(model)}, torch.randn(shape), [mode])


def layers() -> Iterator[Case]:
    """Measure the layers of stage 1 (decomposed) and stage 3 (full) of tiny on a 512x512 crop."""
    for channels, heads, side, decomposed in ((64, 4, 128, True), (256, 8, 32, False)):
        layer = ManhattanAttention(channels, heads, decomposed=decomposed)
        form = "decomposed" if decomposed else "full"
        x = torch.randn(1, side, side, channels)
        yield Case(f"{form}, {side} x {side} x {channels}", {"ours": layer}, x)


PARTS = {
    "layers": timed(layers),
    "inference": timed(backbones, ARCHS, (1, 3, 512, 512), "inference"),
    "training": timed(backbones, ARCHS, (2, 3, 512, 512), "training"),
    "cityscapes": timed(backbones, ["tiny"], (1, 3, 1024, 2048), "inference"),
}

if __name__ == "__main__":
    command("RMT against its plain formulation: time and memory.", PARTS)
