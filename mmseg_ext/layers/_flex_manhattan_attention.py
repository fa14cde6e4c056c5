"""`attend` of `manhattan_attention.py` by PyTorch's flex_attention, for GPUs.

The decay is added to each logit inside the kernel, from the indices of the two positions: no bias
is stored, not even for a slice of the queries. The forward is one kernel (two in the printed form)
and the backward another; public functions take a call for each slice, and a second in the backward.

Nobody has run this on a GPU. On a CPU it never runs by itself; values and gradients are tested
there by the reference that PyTorch keeps beside its kernels.
"""

import math
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

# The first torch whose flex_attention and torch.compile have what is used here.
SUPPORTED = torch.__version__ >= "2.13"
if SUPPORTED:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

# The number of positions from which `python -m mmseg_ext doctor` measured this form faster than
# scaled_dot_product_attention, in training and in inference. A key is the family of the GPU
# ("sm_90"), the precision ("half" or "float32") and what is attended over ("map" or "axis").
# Empty: no GPU has been measured.
MEASURED: dict[tuple[str, str, str], int] = {}

DEVICES = ("cuda",)
_LEAST_HEAD_DIM = 16  # of the GPU's kernel

# A backbone has up to four pairs of heads and widths; each is compiled for training and inference,
# for one size and then for all. Dynamo's own limit is 8.
_PROGRAMS = 256


def measured_key(q: Tensor, axes: int) -> tuple[str, str, str]:
    """The key of `MEASURED` for queries on a GPU, over one axis or the two of whole maps."""
    major, minor = torch.cuda.get_device_capability(q.device)
    family = f"sm_{major}{minor}" if torch.version.hip is None else f"rocm_{major}{minor}"
    precision = "float32" if q.dtype == torch.float32 else "half"
    return family, precision, "map" if axes == 2 else "axis"


def should_use(q: Tensor, axes: int, least: float | None) -> bool:
    """From `least` positions on, or where it is None from those measured; on a GPU alone.

    q are sequences (s, n, l, d), whose positions are those of whole maps or of one axis.
    """
    if not (SUPPORTED and q.device.type in DEVICES):
        return False
    if q.dtype == torch.float64 or q.shape[-1] < _LEAST_HEAD_DIM or _recorded():
        return False
    if least is None:
        least = MEASURED.get(measured_key(q, axes), math.inf) if MEASURED else math.inf
    return q.shape[2] >= least


def _recorded() -> bool:
    """Whether an exporter, a tracer, a counter of products or a transform of `torch.func` asks for
    single operators."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return (
        torch.jit.is_tracing()
        or is_in_torch_dispatch_mode()
        or torch._C._are_functorch_transforms_active()
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, decays: Tensor, lengths: tuple[int, ...], printed: bool = False
) -> Tensor:
    """What `attend` of `manhattan_attention.py` says, from the log-decays (n,) of the heads.

    q, k, v are sequences (s, n, l, d); `lengths` are the height and the width of whole maps, or the
    length of one axis.
    """
    way = _attend if torch.compiler.is_compiling() or q.device.type == "cpu" else _compiled()
    return way(q, k, v, decays, lengths[1] if len(lengths) == 2 else None, printed)


@cache
def _compiled():
    # Not compiled, flex_attention holds all logits: better an error than that.
    return torch.compile(_attend, fullgraph=True, recompile_limit=_PROGRAMS)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, decays: Tensor, width: int | None, printed: bool
) -> Tensor:
    """With logits s and log-decay b, softmax(s + b) v; in the printed form (softmax(s) * exp(b)) v,
    which is that times exp(logsumexp(s + b) - logsumexp(s))."""

    def along_axis(logit: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return logit + decays[head] * (i - j).abs()

    def over_map(logit: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rows = (i // width - j // width).abs()
        columns = (i % width - j % width).abs()
        return logit + decays[head] * (rows + columns)

    decayed = along_axis if width is None else over_map
    if not printed:
        return flex_attention(q, k, v, decayed)  # (s, n, l, d)
    sums = AuxRequest(lse=True)
    out, with_decay = flex_attention(q, k, v, decayed, return_aux=sums)
    _, without = flex_attention(q, k, v.detach(), return_aux=sums)
    mass = torch.exp(with_decay.lse - without.lse).unsqueeze(-1)  # (s, n, l, 1)
    return out * mass.to(out.dtype)
