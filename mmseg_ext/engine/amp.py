"""Mixed precision on any device: bfloat16, or float16 with a gradient scaler on older GPUs.

mmengine's `AmpOptimWrapper` (0.10.7 to 0.10.12) asserts a GPU.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.optim import AmpOptimWrapper, ApexOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from mmseg_ext.errors import LaunchError
from mmseg_ext.torch_versions import grad_scaler

_AMPERE = (8, 0)  # the first CUDA capability with products in bfloat16


@OPTIM_WRAPPERS.register_module()
class PortableAmpOptimWrapper(AmpOptimWrapper):
    """`AmpOptimWrapper` that also runs on the CPU.

    Args:
        dtype: 'float16' or 'bfloat16'; by default bfloat16, which needs no gradient scaler, and
            float16 on GPUs older than Ampere. The log names it.
        loss_scale: 'dynamic', a number, or a dict of `GradScaler`'s arguments; ignored for
            bfloat16, which has float32's range.
    """

    def __init__(
        self, dtype: str | None = None, loss_scale: str | float | dict = "dynamic", **kwargs
    ):
        device = get_device()
        dtype = dtype or default_dtype()
        print_log(f"mixed precision: {dtype} (optim_wrapper.dtype)", logger="current")
        is_on_cpu = device == "cpu" and dtype == "bfloat16"
        if is_on_cpu and not has_bfloat16(torch.device(device)):
            print_log(
                "optim_wrapper: bfloat16 is slow on this CPU, which has neither AVX512-BF16 nor "
                "AMX; train without --amp, or with optim_wrapper.type=OptimWrapper",
                logger="current",
                level=logging.WARNING,
            )
        self._scale_update_param = None
        settings = {}
        if isinstance(loss_scale, dict):
            settings = loss_scale
        elif loss_scale != "dynamic":
            self._scale_update_param = float(loss_scale)
            settings = {"init_scale": self._scale_update_param}
        OptimWrapper.__init__(self, **kwargs)  # AmpOptimWrapper.__init__ asserts a GPU
        self.cast_dtype = getattr(torch, dtype)
        settings = {**settings, "enabled": dtype == "float16"}
        self.loss_scaler = grad_scaler(device, **settings)


def default_dtype() -> str:
    """Return bfloat16, or float16 on a GPU without it."""
    is_old = get_device() == "cuda" and torch.cuda.get_device_capability() < _AMPERE
    return "float16" if is_old else "bfloat16"


def enable_amp(cfg: Config) -> None:
    """Switch the config's `OptimWrapper` to mixed precision; an AMP wrapper stays.

    Raises:
        LaunchError: for any other class, and for several optimizer wrappers.
    """
    if "optimizer" not in cfg.optim_wrapper:
        raise LaunchError("--amp: the config has several optimizer wrappers; set the type of each")
    kind = cfg.optim_wrapper.get("type", "OptimWrapper")
    if isinstance(kind, str):
        with OPTIM_WRAPPERS.switch_scope_and_registry(cfg.get("default_scope")) as registry:
            kind = registry.get(kind)
    if kind is OptimWrapper:
        cfg.optim_wrapper.type = "PortableAmpOptimWrapper"
    # Building the wrapper reports an unknown type.
    elif kind is not None and not issubclass(kind, AmpOptimWrapper | ApexOptimWrapper):
        raise LaunchError(
            f"optim_wrapper.type={kind.__name__!r}: --amp replaces only 'OptimWrapper'; inherit "
            "from PortableAmpOptimWrapper, and omit --amp"
        )


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device has instructions for bfloat16; without them it is slow."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _AMPERE
    file = Path("/proc/cpuinfo")
    if device.type != "cpu" or not file.is_file():
        return False
    flags = file.read_text()
    if "avx512_bf16" not in flags and "amx_bf16" not in flags:
        return False
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()  # follows ONEDNN_MAX_CPU_ISA


def bfloat16_autocast(device: torch.device, enabled: bool = True) -> AbstractContextManager:
    """Return a context manager in which models predict in bfloat16.

    Raises:
        LaunchError: if the device has no instructions for bfloat16, which makes it slow.
    """
    if not enabled:
        return nullcontext()
    if not has_bfloat16(device):
        raise LaunchError(
            f"amp: bfloat16 is slow on this {device.type}, which needs AVX512-BF16, AMX or CUDA "
            "capability 8.0; predict without it"
        )
    # Each weight is used once, so a cache of converted weights would only take memory.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
