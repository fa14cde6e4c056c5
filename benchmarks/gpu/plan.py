"""The rows of the stages `variants` and `loop`, the most valuable first.

A training step is measured in variants: a batch size, a precision, and options:

- stock: mmsegmentation's `EncoderDecoder` instead of `StripEncoderDecoder`
- nhwc: `channels_last` for the network
- merged: parameter groups with equal settings are merged
- fused: the optimizer's fused kernel
- graph: forward and backward pass are a CUDA graph
- compile: the network's blocks are compiled
- untuned: cuDNN does not compare its algorithms
- channels: lambda layers apply one channel of the keys after another, as on a CPU
- profile: also measure the time of the kernels; this makes later rows of the process slower

`limit` is the longest time of a row in seconds. It includes the choice of kernels, which the first
row of a config does for the next ones.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

EANET = "ea_r101_ade20k_160k"
DANET = "danet_r101_ade20k_160k"
RMT = "fpn_rmt_small_ade20k_80k"
DEEPVIT = "upernet_deepvit_s_ade20k_160k"
LAMBDA = "upernet_lambda_r101_ade20k_160k"
SMALL = "ea_r18_shapes"


class Variant(NamedTuple):
    """A training step to measure; the precision is 'bfloat16', 'TF32' or 'float32'."""

    config: str
    batch: int
    options: str = ""
    precision: str = "bfloat16"
    limit: float = 20


# What our runs on a GPU have without a word in the config.
OURS = "nhwc merged fused"
# Variants of a config that follow each other share a process, and so the choice of kernels.
VARIANTS = (
    Variant(EANET, 16, OURS, limit=40),
    Variant(EANET, 16, f"{OURS} compile", limit=120),
    Variant(EANET, 16, f"{OURS} compile graph", limit=40),
    Variant(EANET, 16, f"{OURS} profile", limit=40),
    Variant(DEEPVIT, 2, OURS, limit=40),
    Variant(DEEPVIT, 2, f"{OURS} graph"),
    Variant(DEEPVIT, 16, OURS, limit=40),
    Variant(DEEPVIT, 16, f"{OURS} graph"),
    Variant(DANET, 4, OURS, limit=40),
    Variant(DANET, 4, f"{OURS} graph"),
    Variant(DANET, 16, OURS, limit=40),
    Variant(LAMBDA, 16, OURS, limit=50),
    Variant(LAMBDA, 16, f"{OURS} channels", limit=40),
    Variant(LAMBDA, 16, f"{OURS} graph"),
    Variant(LAMBDA, 4, f"{OURS} channels graph", limit=40),
    Variant(RMT, 16, f"{OURS} untuned graph", limit=40),
    Variant(RMT, 16, f"{OURS} untuned compile", limit=120),
    Variant(RMT, 16, f"{OURS} untuned compile graph", limit=40),
    Variant(DANET, 16, "nhwc fused stock", limit=40),
    Variant(LAMBDA, 16, "nhwc fused stock", limit=40),
    Variant(DEEPVIT, 16, "nhwc fused stock", limit=40),
)
QUICK_VARIANTS = (
    Variant(SMALL, 2, precision="float32"),
    Variant(SMALL, 2, "stock", "float32"),
    Variant(SMALL, 2, "merged fused", "float32"),
    Variant(SMALL, 2, "nhwc"),
    Variant(SMALL, 2, "graph"),
)


class Loop(NamedTuple):
    """A training from files on a disk; mmsegmentation's Runner and transforms if `stock`.

    `keys` are set in the config.
    """

    config: str
    batch: int
    workers: int
    stock: bool = False
    keys: Mapping[str, object] = MappingProxyType({})
    precision: str = "bfloat16"
    limit: float = 40


# Loops of the same runner and keys share a process.
LOOPS = (
    Loop(EANET, 16, 14, limit=60),
    Loop(EANET, 16, 14, keys={"cuda_graph": True}, limit=60),
    Loop(EANET, 16, 14, keys={"compile_blocks": True}, limit=120),
)
QUICK_LOOPS = (
    Loop(EANET, 2, 0, precision="float32"),
    Loop(EANET, 2, 1, stock=True, precision="float32"),
)

LIMITS = {"variants": sum(v.limit for v in VARIANTS), "loop": sum(one.limit for one in LOOPS)}
"""Seconds that a stage takes if each row needs all of its time."""


def variants(quick: bool) -> Sequence[Variant]:
    return QUICK_VARIANTS if quick else VARIANTS


def loops(quick: bool) -> Sequence[Loop]:
    return QUICK_LOOPS if quick else LOOPS
