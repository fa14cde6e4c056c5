"""Tensors without data on a GPU that need not exist: they have a shape, a dtype and a device.

Inside `PretendedDevice` every operator runs on meta tensors, factory functions accept
`device="cuda"`, and an operator on tensors of two devices raises as it does on a GPU. CPU tensors
keep their data. Limits:

- A result whose size depends on values has its largest possible size; `item()` returns 1.
- Mixed precision follows CUDA's lists of functions, as far as segmentation models need them.
- Memory inside an operator (workspaces of cuDNN and cuBLAS) does not exist.
"""

import contextlib
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten

# Functions that CUDA's autocast runs in half precision and in float32, by name. C++'s autocast
# does not see the tensors: for it they are on the meta device.
_HALF = set(
    "conv1d conv2d conv3d conv_transpose2d linear matmul __matmul__ __rmatmul__ mm bmm addmm "
    "baddbmm einsum scaled_dot_product_attention multi_head_attention_forward prelu".split()
)
_FLOAT = set(
    "softmax log_softmax layer_norm group_norm norm normalize exp log pow __pow__ rsqrt reciprocal "
    "softplus sum cumsum prod cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss kl_div "
    "binary_cross_entropy_with_logits cosine_similarity logsumexp".split()
)
# A GPU takes CPU tensors here: as the source of a copy, and as indices.
_TWO_DEVICES = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
}


class DatalessTensor(Tensor):
    """A meta tensor that reports another device; for use inside `PretendedDevice`."""

    @staticmethod
    def __new__(cls, meta: Tensor, device: torch.device):
        tensor = Tensor._make_subclass(cls, meta)
        tensor.meta, tensor.pretended = meta, device
        return tensor

    device = property(lambda self: self.pretended)
    is_cuda = property(lambda self: self.pretended.type == "cuda")
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        raise RuntimeError(f"{operator}: a tensor without data; enter PretendedDevice first")

    def __repr__(self) -> str:
        return f"DatalessTensor({tuple(self.shape)}, {self.dtype}, {self.device})"


class PretendedDevice(TorchDispatchMode):
    """A context in which tensors of this device type have no data.

    Raises:
        RuntimeError: from an operator whose tensors are on different devices.
    """

    def __init__(self, kind: str = "cuda"):
        super().__init__()
        self.device = torch.device(kind, 0)
        self._patches = contextlib.ExitStack()

    def __enter__(self):
        for name, value in {
            "torch.cuda._lazy_init": lambda: None,  # called by factory functions
            "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
            "torch.cuda.is_bf16_supported": lambda *args, **kwargs: True,
        }.items():
            self._patches.enter_context(mock.patch(name, value))
        self._patches.enter_context(_Functions(self.device.type))
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._patches.close()

    def adopt(self, module: nn.Module) -> nn.Module:
        """Put the parameters and buffers of a module from the meta device here; return it."""
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                data = DatalessTensor(parameter.data, self.device)
                setattr(part, name, nn.Parameter(data, parameter.requires_grad))
            for name, buffer in part.named_buffers(recurse=False):
                setattr(part, name, DatalessTensor(buffer, self.device))
        return module

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        ours = {id(t.meta): t for t in tensors if isinstance(t, DatalessTensor)}
        device = kwargs.get("device")
        here = device is not None and torch.device(device).type == self.device.type
        if not ours and not here:
            return operator(*args, **kwargs)
        self._check_devices(operator, tensors, bool(ours))
        if here:
            kwargs = {**kwargs, "device": "meta"}
        if ours:
            args, kwargs = tree_map(_as_meta, (args, kwargs))
        if here and operator is aten._to_copy.default and _stays(ours, args, kwargs):
            outputs = args[0].detach()
        else:
            outputs = _LARGEST.get(operator, operator)(*args, **kwargs)

        def adopted(output):
            if not (isinstance(output, Tensor) and output.is_meta):
                return output
            # In-place operators return their argument.
            return ours[id(output)] if id(output) in ours else DatalessTensor(output, self.device)

        return tree_map(adopted, outputs)

    def _check_devices(self, operator, tensors: list[Tensor], any_here: bool) -> None:
        if not any_here or self.device.type == "cpu" or operator in _TWO_DEVICES:
            return
        for tensor in tensors:
            if not isinstance(tensor, DatalessTensor) and tensor.dim():
                shape = tuple(tensor.shape)
                raise RuntimeError(
                    f"{operator}: one tensor is on {self.device}, another, of shape {shape}, on "
                    f"{tensor.device}; create it on the input's device"
                )


def _as_meta(x):
    if isinstance(x, DatalessTensor):
        return x.meta
    return x.to("meta") if isinstance(x, Tensor) and x.dim() else x


def _stays(ours: dict, args: tuple, kwargs: dict) -> bool:
    """Whether `.to(device)` gets a tensor that is here: C++ sees the meta device and copies."""
    return id(args[0]) in ours and kwargs.get("dtype") in (None, args[0].dtype)


def _indexed(operator):
    """Return `operator` with each boolean mask replaced by as many indices as it has elements."""

    def run(x, indices, *rest, **kwargs):
        replaced = []
        for index in indices:
            if index is not None and index.dtype == torch.bool:
                replaced += [torch.empty(index.numel(), dtype=torch.long, device="meta")] * index.dim()
            else:
                replaced.append(index)
        return operator(x, replaced, *rest, **kwargs)

    return run


# Operators whose result depends on values, by functions that return the largest possible one.
_LARGEST = {
    aten._local_scalar_dense.default: lambda x: torch.ones((), dtype=x.dtype).item(),
    aten.nonzero.default: lambda x: x.new_empty(x.numel(), x.dim(), dtype=torch.long),
    aten.masked_select.default: lambda x, mask: x.new_empty(x.numel()),
    **{op: _indexed(op) for op in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)},
}


class _Functions(TorchFunctionMode):
    """Autocast, fused attention and fused dropout of a GPU, which C++ gives to real ones only."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if self.kind == "cuda":
            if torch.is_autocast_enabled(self.kind) and name in _HALF | _FLOAT:
                half = torch.get_autocast_dtype(self.kind)
                dtype = half if name in _HALF else torch.float32
                args, kwargs = tree_map(lambda x: _cast(x, dtype), (args, kwargs))
            if name == "scaled_dot_product_attention":
                return _fused_attention(*args, **kwargs)
            if name == "dropout":
                return _fused_dropout(*args, **kwargs)
        return function(*args, **kwargs)


def _cast(x, dtype: torch.dtype):
    if isinstance(x, DatalessTensor) and x.is_floating_point() and x.dtype != torch.float64:
        return x.to(dtype)
    return x


def _fused_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_):
    """Run the kernel that a GPU would: the memory-efficient one, if its alignment fits."""
    widths = {q.shape[-1], v.shape[-1]}
    if q.dim() != 4 or any(width * q.element_size() % 16 for width in widths):
        return aten._scaled_dot_product_attention_math(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale
        )[0]
    if attn_mask is not None:
        bias = attn_mask.to(q.dtype)
        attn_mask = bias.expand(*q.shape[:2], q.shape[2], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(
        q, k, v, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )[0]


def _fused_dropout(input, p=0.5, training=True, inplace=False):
    return torch.native_dropout(input, p, training)[0] if training and p else input
