"""Tensors on a GPU that need not exist: they have a shape and a dtype, but no data.

Inside `PretendedDevice` operators run on meta tensors, factory functions accept `device="cuda"`,
and an operator on tensors of two devices raises, as it does on a GPU. CPU tensors keep their data.

- A result whose size depends on values has its largest possible size; `item()` returns 1.
- Mixed precision follows CUDA's lists, as far as segmentation models use them.
- Attention and dropout are CUDA's fused operators.
"""

import contextlib
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten


class DatalessTensor(Tensor):
    """A meta tensor that reports a GPU in Python; C++ sees the meta device."""

    @staticmethod
    def __new__(cls, meta: Tensor):
        tensor = Tensor._make_subclass(cls, meta)
        tensor.meta = meta
        return tensor

    device = torch.device("cuda", 0)
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        raise RuntimeError(f"{operator}: a tensor without data; enter PretendedDevice first")


class PretendedDevice(TorchDispatchMode):
    """Context in which tensors on `cuda` have no data.

    Raises:
        RuntimeError: from an operator whose tensors are on different devices.
    """

    device = DatalessTensor.device

    def __enter__(self):
        self._patches = contextlib.ExitStack()
        # Factory functions initialize CUDA; torch.autocast asks for a GPU.
        for name, value in (
            ("_lazy_init", None),
            ("amp.common.amp_definitely_not_available", False),
            ("is_bf16_supported", True),
        ):
            self._patches.enter_context(mock.patch(f"torch.cuda.{name}", return_value=value))
        self._patches.enter_context(_Functions())
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._patches.close()

    def adopt(self, module: nn.Module) -> nn.Module:
        """Move a module's parameters and buffers from the meta device to this one; return it."""
        moved = {
            parameter: nn.Parameter(DatalessTensor(parameter.data), parameter.requires_grad)
            for parameter in module.parameters()
        }
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                setattr(part, name, moved[parameter])
            for name, buffer in part.named_buffers(recurse=False):
                setattr(part, name, DatalessTensor(buffer))
        return module

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        ours = {id(t.meta): t for t in tensors if isinstance(t, DatalessTensor)}
        device = kwargs.get("device")
        here = device is not None and torch.device(device).type == "cuda"
        if not ours and not here:
            return operator(*args, **kwargs)
        for tensor in tensors if ours and operator not in _TWO_DEVICES else ():
            # GPUs take numbers, tensors without dimensions, from the CPU.
            if not isinstance(tensor, DatalessTensor) and tensor.dim():
                raise RuntimeError(
                    f"{operator}: a tensor {tuple(tensor.shape)} is on {tensor.device}, another on "
                    f"{self.device}; create it on the input's device"
                )
        if here:
            kwargs = {**kwargs, "device": "meta"}
        args, kwargs = tree_map(_as_meta, (args, kwargs))
        outputs = _FORMS.get(operator, operator)(*args, **kwargs)

        def adopted(output):
            if not (isinstance(output, Tensor) and output.is_meta):
                return output
            # An in-place operator returns its argument.
            return ours[id(output)] if id(output) in ours else DatalessTensor(output)

        return tree_map(adopted, outputs)


def _as_meta(x):
    if isinstance(x, DatalessTensor):
        return x.meta
    return x.to("meta") if isinstance(x, Tensor) and x.dim() else x


# GPUs take CPU tensors here: to copy them, and as indices.
_TWO_DEVICES = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
}


def _batch_norm(x, weight, bias, mean, variance, training, momentum, eps):
    count = x.shape[1] if training else 0
    saved = (x.new_empty(count, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x), *saved


def _batch_norm_backward(gradient, x, weight, *rest):
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)


def _copied(x, **options):
    """Return `x` if `.to(device)` changes nothing: C++ sees another device, and copies."""
    stays = x.is_meta and options.get("dtype") in (None, x.dtype)
    return x.detach() if stays else aten._to_copy.default(x, **options)


def _index(x, indices):
    """Index with each mask replaced by as many numbers as the mask has elements."""
    numbers = []
    for index in indices:
        is_mask = index is not None and index.dtype == torch.bool
        every = x.new_empty(index.numel(), dtype=torch.long) if is_mask else index
        numbers += [every] * (index.dim() if is_mask else 1)
    return aten.index.Tensor(x, numbers)


# Operators whose results depend on values, or whose own meta form is slow.
_FORMS = {
    aten._local_scalar_dense.default: lambda x: torch.ones((), dtype=x.dtype).item(),
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.nonzero.default: lambda x: x.new_empty(x.numel(), x.dim(), dtype=torch.long),
    aten.masked_select.default: lambda x, mask: x.new_empty(x.numel()),
    aten._to_copy.default: _copied,
    aten.index.Tensor: _index,
    aten.index_put.default: lambda x, *values: torch.empty_like(x),
    aten.index_put_.default: lambda x, *values: x,
}

# Functions that CUDA's autocast runs in half precision and in float32, by name: autocast in C++
# ignores meta tensors.
_HALF = {
    *("conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "matmul", "__matmul__", "mm"),
    *("__rmatmul__", "bmm", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention", "prelu"),
    "multi_head_attention_forward",
}
_FLOAT = {
    *("softmax", "log_softmax", "layer_norm", "group_norm", "norm", "normalize", "exp", "log"),
    *("pow", "__pow__", "rsqrt", "reciprocal", "softplus", "sum", "cumsum", "prod", "logsumexp"),
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div"),
    *("binary_cross_entropy_with_logits", "cosine_similarity"),
}


class _Functions(TorchFunctionMode):
    """Autocast, fused attention and fused dropout of CUDA."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        if function is Tensor.backward:
            loss = args[0]
            gradient = torch.ones_like(loss)
            # Activation checkpointing computes again, where torch would have left this mode.
            with self:
                engine = torch.autograd.Variable._execution_engine
                return engine.run_backward(
                    (loss,), (gradient,), False, False, (), True, accumulate_grad=True
                )
        if name in _HALF | _FLOAT and torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda") if name in _HALF else torch.float32
            args, kwargs = tree_map(lambda x: _cast(x, dtype), (args, kwargs))
        return _OWN.get(name, function)(*args, **kwargs)


def _cast(x, dtype: torch.dtype):
    casts = isinstance(x, DatalessTensor) and x.is_floating_point() and x.dtype != torch.float64
    return x.to(dtype) if casts else x


def _attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Run the memory-efficient kernel, or the plain products where its alignment does not fit."""
    if any(width * q.element_size() % 16 for width in (q.shape[-1], v.shape[-1])):
        plain = aten._scaled_dot_product_attention_math
        return plain(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:3], k.shape[2])
    fused, backward = aten._scaled_dot_product_efficient_attention, torch.is_grad_enabled()
    return fused(q, k, v, attn_mask, backward, dropout_p, is_causal, scale=scale)[0]


def _dropout(input, p=0.5, training=True, inplace=False):
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _tensor(data, *, device=None, **options):
    return torch.tensor(data, **options).to(device)


_OWN = {"scaled_dot_product_attention": _attention, "dropout": _dropout, "tensor": _tensor}
