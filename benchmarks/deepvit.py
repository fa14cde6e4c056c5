"""Re-attention in blocks of queries against the plain order of operations.

The plain layer is written from equation 3 of the paper: softmax, 1x1 convolution over the heads,
batch norm and weighted sum, each on the maps of all heads at once. Both hold the same weights, run
in one process and take turns.
"""

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.cost.cost_table import MEBI
from mmseg_ext.cost.devices import usable_device
from mmseg_ext.cost.measure import median_ratio, paired_times, peak_memory
from mmseg_ext.layers.re_attention import ReAttention

_WIDTH, _HEADS = 384, 12
_LAYER_SIZES = ((1, 197), (8, 197), (1, 1025), (2, 1025), (1, 4097))


class PlainReAttention(nn.Module):
    """Re-attention step by step, with the modules of a `ReAttention`."""

    def __init__(self, layer: ReAttention):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        qkv = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1))  # (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # each (B, H, N, d)
        maps = (q @ k.transpose(-2, -1) * layer.scale).softmax(-1)  # (B, H, N, N)
        maps = layer.var_norm(layer.reatten_matrix(maps)) * layer.map_scale
        return layer.proj((maps @ v).transpose(1, 2).flatten(2))  # (B, N, C)


def plain_twin(model: nn.Module) -> nn.Module:
    """A copy of `model` with every re-attention evaluated step by step."""
    if isinstance(model, ReAttention):
        return PlainReAttention(copy.deepcopy(model))
    twin = copy.deepcopy(model)
    for block in twin.blocks:
        if isinstance(block.attn, ReAttention):
            block.attn = PlainReAttention(block.attn)
    return twin


def inference_row(name: str, model: nn.Module, x: Tensor, rounds: int) -> dict:
    """Times and peak memory of one evaluation, plain and in blocks of queries."""

    def step(module: nn.Module) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return module(x)

        return run

    model.eval()
    return _row(name, {"plain": step(plain_twin(model)), "blocks": step(model)}, x, rounds)


def training_row(name: str, layer: ReAttention, x: Tensor, rounds: int) -> dict:
    """Times and peak memory of one forward and backward, plain and in blocks of queries."""
    x = x.requires_grad_()

    def step(module: nn.Module) -> Callable[[], object]:
        return lambda: module(x).square().sum().backward()

    layer.train()
    return _row(name, {"plain": step(plain_twin(layer)), "blocks": step(layer)}, x, rounds)


def _row(name: str, steps: dict[str, Callable[[], object]], x: Tensor, rounds: int) -> dict:
    times = paired_times(steps, rounds)
    memory = {key: peak_memory(run, x.device) / MEBI for key, run in steps.items()}
    return {
        "name": name,
        "plain_ms": 1e3 * statistics.median(times["plain"]),
        "blocks_ms": 1e3 * statistics.median(times["blocks"]),
        "ratio": median_ratio(times["plain"], times["blocks"]),
        "plain_mib": memory["plain"],
        "blocks_mib": memory["blocks"],
    }


def measure(rounds: int, device: str = "cpu") -> list[dict]:
    """Rows for the layer at several numbers of tokens and for whole backbones."""
    torch.manual_seed(0)
    layer = ReAttention(_WIDTH, _HEADS).to(device)
    rows = [
        inference_row(
            f"layer, batch {batch}, {tokens} tokens",
            layer,
            torch.randn(batch, tokens, _WIDTH, device=device),
            rounds,
        )
        for batch, tokens in _LAYER_SIZES
    ]
    x = torch.randn(2, 1025, _WIDTH, device=device)
    rows.append(training_row("layer, training, batch 2, 1025 tokens", layer, x, rounds))
    for arch, size in (("16b", 224), ("16b", 512), ("s", 512)):
        model = DeepViT(arch=arch, rescale_norm=False).to(device)
        images = torch.randn(1, 3, size, size, device=device)
        rows.append(inference_row(f"DeepViT-{arch}, {size}x{size}", model, images, rounds))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command line of `benchmarks/deepvit.py`; the exit status."""
    parser = argparse.ArgumentParser(
        description="Re-attention: all maps at once against blocks of queries."
    )
    parser.add_argument("--rounds", type=int, default=9, help="paired repetitions (9)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args(argv)
    try:
        usable_device(args.device)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = measure(args.rounds, args.device)
    print("| | plain, ms | blocks, ms | ratio | plain, MiB | blocks, MiB |\n|-|-|-|-|-|-|")
    for row in rows:
        print(
            f"| {row['name']} | {row['plain_ms']:.1f} | {row['blocks_ms']:.1f} | "
            f"{row['ratio']:.1f} | {row['plain_mib']:.0f} | {row['blocks_mib']:.0f} |"
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
