"""A simulated CUDA device, whose tensors have only a shape and a dtype.

Inside `SimulatedCUDA` tensors on `cuda` are meta tensors, and an operator on tensors of two
devices raises, as most do on a GPU. Numbers, masks and indices may be on the CPU, as on a GPU. CPU
tensors keep their data. torch's own `FakeTensorMode` with `device="cuda"` needs a build for CUDA:
on one for CPUs (2.13) it stops at the first `uniform_`, "not linked with support for cuda devices".

- Indexing with a mask selects as many values as the mask has, `nonzero` finds all; a value that is
  read, as by `item()` or `cpu()`, is 1, also in `x.sum() == 0`.
- Mixed precision follows CUDA's lists, as far as segmentation models use them.
- Attention and dropout are CUDA's fused operators.
"""

import contextlib
import weakref
from collections.abc import Iterator

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from mmseg_ext.torch_versions import autocast_dtype, set_autocast

aten = torch.ops.aten


class SimulatedCUDA(TorchDispatchMode):
    """Context in which tensors on `cuda` have no data; `current` and `peak` are their bytes.

    `gradients` are the bytes that callers report as gradients, `gradients_at_peak` their value
    when `peak` was reached.

    Raises:
        RuntimeError: from an operator whose tensors are on different devices.
    """

    device = torch.device("cuda", 0)

    def __init__(self):
        super().__init__()
        self.current = self.peak = self.gradients = self.gradients_at_peak = 0
        self._storages = WeakIdKeyDictionary()

    def __enter__(self):
        self._contexts = contextlib.ExitStack()
        # Activation checkpointing compares devices, which are meta inside an operator.
        checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
        self._contexts.callback(checks.update, dict(checks))
        checks["default"] = lambda x: None
        self._contexts.enter_context(_Functions())
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._contexts.close()

    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype | None) -> Iterator[None]:
        """Enable mixed precision; `torch.autocast` would ask for a real GPU. None disables it."""
        before = autocast_dtype("cuda")
        set_autocast("cuda", dtype)
        try:
            yield
        finally:
            set_autocast("cuda", before)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # Without torch functions, so `is_meta` and `device` belong to the meta tensors.
        with torch._C.DisableTorchFunction():
            simulated = False
            foreign = None
            for tensor in _tensors_in((args, kwargs)):
                if tensor.is_meta:
                    simulated = True
                elif tensor.dim() > 0 and foreign is None:  # GPUs take numbers from the CPU
                    foreign = tensor
            if simulated and foreign is not None and not _takes_cpu_tensors(operator, args):
                raise RuntimeError(
                    f"{operator}: a tensor {tuple(foreign.shape)} is on {foreign.device}, "
                    f"another on {self.device}; create it on the input's device"
                )
            run = _FORMS.get(operator, operator) if simulated else operator
            outputs = run(*args, **kwargs)
            for output in _tensors_in(outputs):
                if output.is_meta:
                    self._count(output.untyped_storage())
        return outputs

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._storages:
            self._storages[storage] = None
            self._add(storage.nbytes())
            weakref.finalize(storage, self._add, -storage.nbytes())

    def _add(self, size: int) -> None:
        self.current += size
        if self.current > self.peak:
            self.peak, self.gradients_at_peak = self.current, self.gradients


def _tensors_in(values) -> list[Tensor]:
    """Return the tensors in nested arguments or results of an operator."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _takes_cpu_tensors(operator, args) -> bool:
    """Return whether an operator takes CPU tensors next to tensors of the device.

    Copies go in both directions; indices may be on the CPU if the indexed tensor is on the device.
    """
    if operator is aten.copy_.default:
        return True
    return operator in _INDEXING and args[0].is_meta


def _on_device(x, indices):
    """Return indices on the device of x; a mask there selects as many values as it has."""
    numbers = []
    for index in indices:
        if index is None:
            numbers.append(None)
        elif index.dtype == torch.bool:
            count = index.numel() if index.is_meta else int(index.sum())
            for _ in range(index.dim()):
                numbers.append(x.new_empty(count, dtype=torch.long))
        else:
            numbers.append(x.new_empty(index.shape, dtype=torch.long))
    return numbers


def _copied(x, device=None, **kwargs):
    """Copy x, to the CPU as ones."""
    if device is None or torch.device(device).type == "meta":
        return aten._to_copy.default(x, device=device, **kwargs)
    return torch.ones(x.shape, dtype=kwargs.get("dtype") or x.dtype)


def _copy_in_place(x, source, non_blocking=False):
    return x if x.is_meta else x.fill_(1)


def _batch_norm_outputs(x, weight, bias, mean, variance, training, momentum, eps):
    """Return output, mean and inverse deviation, also for one value per channel."""
    channels = x.shape[1] if training else 0
    dtype = torch.promote_types(x.dtype, torch.float32)
    batch_mean = x.new_empty(channels, dtype=dtype)
    inverse_deviation = x.new_empty(channels, dtype=dtype)
    return torch.empty_like(x), batch_mean, inverse_deviation


def _value(x):
    """Return the value of a tensor with one element: 1."""
    return torch.ones((), dtype=x.dtype).item()


def _equals_number(x, number):
    """Compare with a number; a tensor without dimensions has the value 1."""
    if x.dim() == 0:
        return torch.tensor(number == 1)
    return aten.eq.Scalar(x, number)


def _positions_of_all(x):
    """Return the result of `nonzero` for a tensor without zeros."""
    return x.new_empty((x.numel(), x.dim()), dtype=torch.long)


def _select(x, indices):
    return aten.index.Tensor(x, _on_device(x, indices))


def _like_first(x, *values):
    return torch.empty_like(x)


def _first(x, *values):
    return x


def _convolution(x, *settings):
    """Keep channels last, as cuDNN does."""
    output = aten.convolution.default(x, *settings)
    last = x.dim() == 4 and x.shape[1] > 1 and x.stride(1) == 1
    return torch.empty_like(output, memory_format=torch.channels_last) if last else output


# Operators whose results depend on values, batch norm, and convolution.
_FORMS = {
    aten.convolution.default: _convolution,
    aten.native_batch_norm.default: _batch_norm_outputs,
    aten._local_scalar_dense.default: _value,
    aten.eq.Scalar: _equals_number,
    aten._to_copy.default: _copied,
    aten.copy_.default: _copy_in_place,
    aten.nonzero.default: _positions_of_all,
    aten.index.Tensor: _select,
    aten.index_put.default: _like_first,
    aten.index_put_.default: _first,
    aten._index_put_impl_.default: _first,
}
# Their indices, masks and values may be on the CPU.
_INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}

# Functions that CUDA's autocast runs in half precision and in float32, by name: autocast in C++
# ignores meta tensors.
_HALF = {
    "baddbmm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv_transpose2d",
    "einsum",
    "linear",
    "matmul",
    "multi_head_attention_forward",
    "scaled_dot_product_attention",
}
_FLOAT = {
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "exp",
    "group_norm",
    "layer_norm",
    "log",
    "log_softmax",
    "pow",
    "rsqrt",
    "softmax",
    "sum",
}


class _Functions(TorchFunctionMode):
    """Python's view of the device, autocast, and the fused attention and dropout of CUDA."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.backward:
            return self._run_backward(args[0])
        kwargs = kwargs or {}
        if function is not torch.device:
            args = [_on_meta(x) for x in args]
            kwargs = {key: _on_meta(x) for key, x in kwargs.items()}
        dtype = _autocast_dtype_of(getattr(function, "__name__", ""))
        if dtype is not None:
            args, kwargs = tree_map(lambda x: _cast(x, dtype), (args, kwargs))
        return _OWN.get(function, function)(*args, **kwargs)

    def _run_backward(self, loss: Tensor):
        """Compute gradients in this mode, which `torch.autograd.backward` leaves.

        Activation checkpointing computes functions again in the backward pass.
        """
        engine = torch.autograd.Variable._execution_engine
        gradient = torch.ones_like(loss)
        with self:
            return engine.run_backward(
                (loss,), (gradient,), False, False, (), True, accumulate_grad=True
            )


def _autocast_dtype_of(name: str) -> torch.dtype | None:
    """Return the dtype in which autocast runs a function, or None if it keeps the input's."""
    half = autocast_dtype("cuda")
    if half is None:
        return None
    if name in _HALF:
        return half
    if name in _FLOAT:
        return torch.float32
    return None


def _on_meta(x):
    is_cuda = isinstance(x, str | torch.device) and str(x).startswith("cuda")
    return torch.device("meta") if is_cuda else x


def _cast(x, dtype: torch.dtype):
    casts = isinstance(x, Tensor) and x.is_meta and x.is_floating_point()
    return x.to(dtype) if casts and x.dtype != torch.float64 else x


def _device(x):
    return SimulatedCUDA.device if x.is_meta else x.device


def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Run the memory-efficient kernel, or the plain products where its alignment does not fit."""
    if any(width * q.element_size() % 16 for width in (q.shape[-1], v.shape[-1])):
        plain = aten._scaled_dot_product_attention_math
        return plain(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:3], k.shape[2])
    fused, backward = aten._scaled_dot_product_efficient_attention, torch.is_grad_enabled()
    return fused(q, k, v, attn_mask, backward, dropout_p, is_causal, scale=scale)[0]


def _dropout(input, p, training, inplace):
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _batch_norm(
    x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Accept one value per channel, because SyncBN counts the values of all GPUs."""
    statistics = (running_mean, running_var, training, momentum, eps)
    return torch.batch_norm(x, weight, bias, *statistics, torch.backends.cudnn.enabled)


_OWN = {
    Tensor.device.__get__: _device,
    Tensor.is_cuda.__get__: lambda x: x.is_meta,  # type: ignore  # a property of the class
    functional.scaled_dot_product_attention: _attention,
    functional.dropout: _dropout,
    functional.batch_norm: _batch_norm,
}
