"""Activation checkpointing that leaves the running statistics of batch norms as without it."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def run_recomputed(block: nn.Module, x: Tensor) -> Tensor:
    """`block(x)` of any shapes; its activations are computed again in the backward."""
    return checkpoint(
        block,
        x,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _statistics_kept(block)),
    )


@contextlib.contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """The batch norms of `block` normalise as they do, but leave their running statistics alone."""
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm)]
    kept = [dict(norm._buffers) for norm in norms]
    # Copies, not a momentum of zero: synchronised norms stop where the count of batches is None.
    for norm, buffers in zip(norms, kept, strict=True):
        norm._buffers.update({k: v.clone() for k, v in buffers.items() if v is not None})
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)
