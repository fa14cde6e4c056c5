"""`attend` of `manhattan_attention.py` over whole maps by the CPU's fused kernel, streamed.

A slice of the bias is added up in one buffer that all slices share, and again in the backward,
which gets the softmax back from its log-sum-exps; public functions compute the forward twice. In
the printed form no map of probabilities exists. The operators are private ones of PyTorch. Public
functions in the same slices took, over these, in processor time of one thread at 8 heads of 32:

                                          inference   training   memory in training
    32 x 32 positions                       0.99        1.31            1.3
    32 x 32 positions, decay='product'      1.12        1.30            4.7
    64 x 128 positions                      1.56    not measured

Along one axis they took at most 1.09 times as long: there they run.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from mmseg_ext.layers._manhattan_tables import bias_of, query_slices
from mmseg_ext.layers.precision import full_precision


def recorded() -> bool:
    """Whether a compiler or tracer, or a transform of `torch.func`, takes the operators apart."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
    )


def should_use(q: Tensor, tables: tuple[Tensor, ...]) -> bool:
    """Whole maps on a CPU, where nothing takes the operators apart."""
    return len(tables) == 2 and q.device.type == "cpu" and not recorded()


def attend(
    q: Tensor, k: Tensor, v: Tensor, tables: tuple[Tensor, ...], printed: bool = False
) -> Tensor:
    return _Attend.apply(q, k, v, printed, *tables)


class _Attend(torch.autograd.Function):
    """With logits s = q k^T / sqrt(d) and log-decay b, the renormalised form is softmax(s + b) v.

    The printed form, (softmax(s) * exp(b)) v, is that times exp(logsumexp(s + b) - logsumexp(s)).
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, printed: bool, *tables: Tensor) -> Tensor:
        parts = [_fused(q[:, :, rows], k, v, bias) for rows, bias in _slices(tables)]
        out, log_sum = (torch.cat(part, 2) for part in zip(*parts, strict=True))
        plain = None
        if printed:
            plain = _fused(q, k, v)[1]  # (s, n, l)
            out = out * torch.exp(log_sum - plain).unsqueeze(-1).to(out.dtype)
        ctx.save_for_backward(q, k, v, out, log_sum, plain, *tables)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "ManhattanAttention over whole maps has no second derivative on a CPU"
            )
        q, k, v, out, log_sum, plain, *tables = ctx.saved_tensors
        grad = grad.contiguous()
        if plain is None:
            grads = _backward(grad, q, k, v, out, log_sum, tables)
        else:
            grads = _printed_backward(grad, q, k, v, out, log_sum, plain, tables)
        return *grads, None, *(None for _ in tables)


def _slices(tables: tuple[Tensor, ...]) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the queries with their bias, which is valid until the next is asked for."""
    slices = query_slices(tables)
    size = tables[0].shape[0] * slices[0].stop * slices[-1].stop
    buffer = tables[0].new_empty(size)
    for rows in slices:
        yield rows, bias_of(tables, rows, buffer)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(d) + bias) v, and the logarithm of the softmax's denominator."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=bias)


def _fused_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, log_sum, 0.0, False, attn_mask=bias
    )


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum: Tensor,
    tables: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """p * (grad v^T - rowsum(grad * out)) and what follows from it, p = softmax(s + b)."""
    grad_q = torch.empty_like(q)
    grad_k, grad_v = (torch.zeros_like(x, dtype=full_precision(x.dtype)) for x in (k, v))
    for rows, bias in _slices(tables):
        part_q, part_k, part_v = _fused_backward(
            grad[:, :, rows], q[:, :, rows], k, v, out[:, :, rows], log_sum[:, :, rows], bias
        )
        grad_q[:, :, rows] = part_q
        grad_k += part_k
        grad_v += part_v
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype)


def _printed_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum: Tensor,
    plain: Tensor,
    tables: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """The logits' gradient p * (r grad v^T) - softmax(s) * rowsum(grad * out), r the row's mass.

    Either term is the kernel's p * (grad v^T - rowsum(grad * out)) with one part set to zero: the
    first by out = 0, the second by v = 0.
    """
    mass = torch.exp(log_sum - plain).unsqueeze(-1).to(grad.dtype)  # (s, n, l, 1)
    decayed = _backward(grad * mass, q, k, v, torch.zeros_like(out), log_sum, tables)
    unit, carried = torch.zeros_like(q), torch.zeros_like(q)
    unit[..., 0] = 1
    carried[..., 0] = (grad * out).sum(-1)
    undecayed = _fused_backward(unit, q, k, torch.zeros_like(v), carried, plain)
    return decayed[0] + undecayed[0], decayed[1] + undecayed[1], decayed[2]
