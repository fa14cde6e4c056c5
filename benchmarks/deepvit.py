"""Print the table of docs/deepvit.md: re-attention in blocks of queries and step by step."""

import copy
from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.reference.re_attention import PlainReAttention
from benchmarks.tables import Case, command, timed
from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.layers import ReAttention


def plain_twin(model: nn.Module) -> nn.Module:
    """Return a copy of `model` that computes every re-attention step by step."""
    twin = copy.deepcopy(model)
    if isinstance(twin, ReAttention):
        return PlainReAttention(twin)
    for block in twin.blocks:
        if isinstance(block.attn, ReAttention):
            block.attn = PlainReAttention(block.attn, block.attn.map_scale != 1.0)
    return twin


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
        ways = {"blocks": model, "plain": plain_twin(model)}
        yield Case(name, ways, torch.randn(shape), [mode])


if __name__ == "__main__":
    command("Re-attention: blocks of queries.", {"blocks": timed(blocks)})
