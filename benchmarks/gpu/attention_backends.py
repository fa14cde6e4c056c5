"""Masked attention on each of PyTorch's kernels: errors, and the time of the first and later calls.

    python -m benchmarks.gpu --stages benchmarks.gpu.attention_backends:attention_backends --out DIR

cuDNN's kernel, which torch 2.10 and newer prefer on Hopper, is one that our layers do not use.
"""

import functools
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.stage import Row, Run, attempt, measure
from benchmarks.tables import Result
from mmseg_ext.doctor.checks import LENGTHS, PRECISIONS, attention_error, in_precision

BACKENDS = ("CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "MATH")


def attention_backends(run: Run) -> Iterator[Row]:
    """Compare each kernel with float64 at each length, in float32 and in bfloat16."""
    for precision in ("bfloat16", "float32"):
        for backend in BACKENDS:
            for length in LENGTHS[: 1 if run.quick else None]:
                title = {"kernel": backend, "precision": precision, "length": length}
                yield attempt(title, backend_row, run, backend, precision, length)


def backend_row(run: Run, backend: str, precision: str, length: int) -> Row:
    device = torch.device(run.device)
    attention = functools.partial(attend_with, getattr(SDPBackend, backend))
    begin = time.perf_counter()
    error = attention_error(attention, length, precision, device)
    first = time.perf_counter() - begin
    dtype = PRECISIONS[precision][0] or torch.float32
    # As along the width of a map with 128 rows and 4 heads.
    q, k, v = (torch.randn(128, 4, length, 32, device=device, dtype=dtype) for _ in range(3))
    q.requires_grad_()
    mask = torch.zeros(1, 4, length, length, device=device, dtype=dtype)

    def step() -> None:
        attention(q, k, v, mask).sum().backward()

    with in_precision("float32", device):
        cost = measure(run, {"step": step})["step"]
    row: Row = {"error": f"{error:.1e}", "first call, s": f"{first:.2f}"}
    return {**row, "ms": f"{cost.ms:.3f}" if isinstance(cost, Result) else cost}


def attend_with(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    with sdpa_kernel([backend]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
