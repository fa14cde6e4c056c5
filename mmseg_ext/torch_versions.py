"""Code for several versions of torch, sorted by the version that needs only the newer branch.

Remove the older branch when `setup.py` requires this version. The module imports only torch.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import serialization

# torch 2.4: loading knows a list of allowed types, which mmengine's checkpoints need.
HAS_ALLOW_LIST = hasattr(serialization, "add_safe_globals")
# torch 2.5: attention on a CPU takes a float32 mask with queries in half precision.
HAS_MIXED_MASKS = torch.__version__ >= "2.5"
# torch 2.6: `weights_only` covers tar archives, which torch tries first (CVE-2025-32434).
HAS_SAFE_TAR = torch.__version__ >= "2.6"


def existing_kernels(values: dict[str, Any]) -> dict[Any, Any]:
    """Replace names of ATen's kernels by the kernels; before torch 2.2 some do not exist."""
    aten = torch.ops.aten
    return {getattr(aten, name): value for name, value in values.items() if hasattr(aten, name)}


# torch 2.3: the function is public.
if hasattr(torch.compiler, "is_compiling"):
    is_compiling = torch.compiler.is_compiling
else:
    is_compiling = torch._utils.is_compiling  # type: ignore[attr-defined] (not in newer ones)


def grad_scaler(device: str, **settings: Any) -> "torch.amp.GradScaler":
    """Return the scaler of gradients for a type of device; before torch 2.3 for a GPU."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device, **settings)
    return torch.cuda.amp.GradScaler(**settings)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype of autocast on a type of device; None if it is off or does not exist."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4
        available = torch.amp.is_autocast_available(device_type)  # not on meta
        enabled = available and torch.is_autocast_enabled(device_type)
        return torch.get_autocast_dtype(device_type) if enabled else None
    if device_type == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    enabled = device_type == "cuda" and torch.is_autocast_enabled()
    return torch.get_autocast_gpu_dtype() if enabled else None


@contextlib.contextmanager
def allowed_globals(types: list[Any]) -> Iterator[None]:
    """Let `torch.load` read objects of these types and no others; before torch 2.4 of none."""
    if not HAS_ALLOW_LIST:
        yield
        return
    before = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    serialization.add_safe_globals(types)
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


def eager_stance(eager: bool) -> None:
    """Let compiled modules run uncompiled, or compiled again; before torch 2.6 do nothing."""
    if hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager" if eager else "default")


def set_cudnn_attention(enabled: bool) -> bool:
    """Allow or forbid cuDNN's kernel for attention; return whether it was allowed."""
    before = allows_cudnn_attention()
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
        torch.backends.cuda.enable_cudnn_sdp(enabled)
    return before


def allows_cudnn_attention() -> bool:
    """Return whether cuDNN's kernel for attention may be chosen; before torch 2.3 there is none."""
    known = getattr(torch.backends.cuda, "cudnn_sdp_enabled", None)
    return known is not None and known()


def has_static_value(size: Any) -> bool:
    """Return whether a symbolic size is one number; before torch 2.5 always False."""
    # Imported here, because it imports sympy, which eager code does not need.
    from torch.fx.experimental import symbolic_shapes

    known: Callable | None = getattr(symbolic_shapes, "has_static_value", None)
    return known is not None and known(size)


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Multiply float32 matrices without TF32 and bfloat16, whatever the user has set."""
    mkldnn: Any = torch.backends.mkldnn  # without types
    backends = []
    if torch.__version__ >= "2.9":
        backends = [torch.backends.cuda.matmul, mkldnn.matmul]
    befores = [backend.fp32_precision for backend in backends]
    # torch 2.9 and newer have two settings, and raise where one says TF32 and the other does not.
    try:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
    except RuntimeError:  # a user has set the precision of one backend
        before = None
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        for backend, value in zip(backends, befores, strict=True):
            backend.fp32_precision = value
