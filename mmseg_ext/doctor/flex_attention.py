"""Manhattan attention by flex_attention: whether it is right here, and from what length it pays.

`mmseg_ext/layers/_flex_manhattan_attention.py` has a table of the lengths from which it is chosen.
A line here says what a GPU's entry in it is.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from mmseg_ext.doctor.contest import contest, speedup
from mmseg_ext.doctor.findings import Check, Finding, Unavailable
from mmseg_ext.layers import _flex_manhattan_attention as flex
from mmseg_ext.layers import manhattan_attention as public
from mmseg_ext.layers._manhattan_tables import axis_decay, bias_of, head_decays

HEADS, HEAD_DIM = 8, 32
DECAY = (HEADS, 2.0, 6.0)  # stage 3 of RMT-tiny
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

Lengths = tuple[int, ...]
Form = Callable[[Tensor, Tensor, Tensor], Tensor]

# One size that no block of a kernel divides, and sizes to measure.
ODD_SIZES: dict[str, Lengths] = {"whole maps": (13, 21), "along an axis": (150,)}
SIZES: dict[str, tuple[Lengths, ...]] = {
    "whole maps": ((16, 16), (32, 32), (64, 64)),
    "along an axis": ((32,), (64,), (128,)),
}


def checks(device: torch.device, quick: bool) -> Iterator[Check]:
    """Values and gradients, and the lengths from which it pays; with `quick` the first alone."""
    for kind, lengths in ODD_SIZES.items():
        for printed in (False, True):
            name = f"{kind}, {'product' if printed else 'logit'}"
            yield Check("flex_attention", name, partial(check_values, lengths, printed, device))
            if quick:
                return
    for kind, sizes in SIZES.items():
        for dtype in (torch.bfloat16, torch.float32):
            name = f"{kind}, speed, {str(dtype).removeprefix('torch.')}"
            yield Check("flex_attention", name, partial(_check_speed, sizes, dtype, device))


def _forms(q: Tensor, lengths: Lengths, printed: bool) -> dict[str, Form]:
    """By flex_attention, by scaled_dot_product_attention in slices, and with all logits held."""
    decays = head_decays(q, *DECAY)
    tables = tuple(axis_decay(q, *DECAY, length) for length in lengths)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = bias_of(tables, slice(0, math.prod(lengths)))  # (1, n, L, L)
        logits = (q @ k.transpose(-1, -2)).to(bias.dtype) * q.shape[-1] ** -0.5  # (s, n, L, L)
        weights = logits.softmax(-1) * bias.exp() if printed else (logits + bias).softmax(-1)
        return weights.to(v.dtype) @ v  # (s, n, L, d)

    return {
        "flex": lambda q, k, v: flex.attend(q, k, v, decays, lengths, printed),
        "SDPA": lambda q, k, v: public.attend(q, k, v, tables, printed),
        "plain": plain,
    }


def _tensors(sequences: int, lengths: Lengths, count: int, **options) -> list[Tensor]:
    shape = (sequences, HEADS, math.prod(lengths), HEAD_DIM)
    return [torch.randn(shape, **options) for _ in range(count)]


def _results(form: Form, qkv: Sequence[Tensor], weights: Tensor | None) -> list[Tensor]:
    """The values, and with `weights` of their sum its gradients by queries, keys and values."""
    if weights is None:
        return [form(*qkv)]
    leaves = [t.clone().requires_grad_() for t in qkv]
    out = form(*leaves)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]


def _error(ours: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    errors = [
        float((a.cpu().double() - b).abs().max() / b.abs().max())
        for a, b in zip(ours, expected, strict=True)
    ]
    return max(e if math.isfinite(e) else math.inf for e in errors)


def _require_flex_attention() -> None:
    if not flex.SUPPORTED:
        raise Unavailable(f"flex_attention is used from torch 2.13 on; this is {torch.__version__}")


def check_values(lengths: Lengths, printed: bool, device: torch.device) -> Finding:
    """Values and gradients on the device against the plain form in float64 on the CPU.

    On a CPU PyTorch has a reference of the values alone, which runs uncompiled.
    """
    _require_flex_attention()
    torch.manual_seed(0)
    *qkv, weights = _tensors(2, lengths, 4, dtype=torch.float64)
    gradients = device.type != "cpu"
    plain = _forms(qkv[0], lengths, printed)["plain"]
    expected = _results(plain, qkv, weights if gradients else None)
    figures, right = [], True
    for dtype, bound in BOUNDS.items():
        moved = [t.to(device, dtype) for t in qkv]
        scale = weights.to(device, dtype) if gradients else None
        errors = {
            name: _error(_results(form, moved, scale), expected)
            for name, form in _forms(moved[0], lengths, printed).items()
            if name != "plain"
        }
        if dtype != torch.float32:
            bound = max(bound, 1.5 * errors["SDPA"])
        right = right and errors["flex"] <= bound
        name = str(dtype).removeprefix("torch.")
        figures.append(
            f"{name} {errors['flex']:.1e} (SDPA {errors['SDPA']:.1e}), bound {bound:.1e}"
        )
    if not gradients:
        figures.append("values alone: a CPU has no backward of it")
    return Finding("ok" if right else "FAIL", "; ".join(figures))


def _check_speed(sizes: Sequence[Lengths], dtype: torch.dtype, device: torch.device) -> Finding:
    _require_flex_attention()
    if device.type != "cuda":
        raise Unavailable("it is for GPUs: a CPU has no backward of it, and never takes it")
    return measure(sizes, dtype, device)


def measure(
    sizes: Sequence[Lengths], dtype: torch.dtype, device: torch.device, rounds: int = 10
) -> Finding:
    """The speed of flex_attention over SDPA's and the plain form's, the lesser of training's and
    inference's, at each size, and the entry that follows for the table of lengths."""
    over_sdpa: dict[int, float] = {}
    over_plain: list[float] = []
    for lengths in sizes:
        sequences = 1 if len(lengths) == 2 else lengths[0]  # the rows of a square map
        qkv = _tensors(sequences, lengths, 3, dtype=dtype, device=device)
        for t in qkv:
            t.requires_grad_()
        forms = {n: partial(f, *qkv) for n, f in _forms(qkv[0], lengths, False).items()}
        results = [contest(forms, leaves, device, rounds) for leaves in (qkv, None)]
        over_sdpa[math.prod(lengths)] = min(speedup(r, "flex", "SDPA") for r in results)
        over_plain.append(min(speedup(r, "flex", "plain") for r in results))
    memory = results[0]
    least = least_paying(over_sdpa)
    entry = f"MEASURED[{flex.measured_key(qkv[0], len(sizes[0]))}] = {least}, until then flex_from"
    figures = [
        f"x{' x'.join(f'{r:.2f}' for r in over_sdpa.values())} of SDPA",
        f"x{' x'.join(f'{r:.2f}' for r in over_plain)} of the plain form",
        f"at {', '.join(map(str, over_sdpa))} positions",
        f"training at the last {memory['flex'].memory:.0f} of {memory['SDPA'].memory:.0f} MiB",
        entry if least else "pays at none of them: no entry",
    ]
    return Finding("ok", "; ".join(figures))


def least_paying(ratios: Mapping[int, float]) -> int | None:
    """The least length from which on every ratio is above one; None where the last is not."""
    least = None
    for length in sorted(ratios, reverse=True):
        if ratios[length] <= 1:
            break
        least = length
    return least
