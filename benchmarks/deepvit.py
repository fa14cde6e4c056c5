"""Print the table of docs/deepvit.md: re-attention in blocks of queries and step by step."""

import copy
from collections.abc import Iterator

import torch

from benchmarks.tables import Case, command, in_published_order, timed
from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.layers import ReAttention


def blocks() -> Iterator[Case]:
    """Compare the layer and a backbone."""
    layer = ReAttention(384, 12)
    backbone = DeepViT(arch="16b", rescale_norm=False)
    cases = [
        ("layer, batch 1, 1025 tokens", layer, (1, 1025, 384), "inference"),
        ("layer, batch 2, 1025 tokens", layer, (2, 1025, 384), "training"),
        ("DeepViT-16b, 512x512", backbone, (1, 3, 512, 512), "inference"),
    ]
    for name, model, shape, mode in cases:
        ways = {"blocks": model, "plain": in_published_order(copy.deepcopy(model))}
        yield Case(name, ways, torch.randn(shape), [mode])


if __name__ == "__main__":
    command("Re-attention: blocks of queries.", {"blocks": timed(blocks)})
