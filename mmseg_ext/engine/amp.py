"""Mixed precision wherever the run is: float16 with a gradient scaler on a GPU, bfloat16 on a CPU.

mmengine's `AmpOptimWrapper` (0.10.7 to 0.10.12) asserts a GPU.
"""

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper, ApexOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from mmseg_ext.errors import LaunchError

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@OPTIM_WRAPPERS.register_module()
class PortableAmpOptimWrapper(AmpOptimWrapper):
    """`AmpOptimWrapper` that runs on the CPU too.

    `dtype` is 'float16' or 'bfloat16', by default the first on a GPU and the second elsewhere;
    gradients are scaled by `loss_scale` ('dynamic', a number or `GradScaler`'s arguments) in
    float16 alone, bfloat16 having float32's range.

    Raises:
        ValueError: for another dtype, for float16 on a CPU, and for another `loss_scale`.
    """

    def __init__(
        self, dtype: str | None = None, loss_scale: str | float | dict = "dynamic", **kwargs
    ):
        device = get_device()
        dtype = dtype or ("bfloat16" if device == "cpu" else "float16")
        if dtype not in _DTYPES or (device == "cpu" and dtype == "float16"):
            raise ValueError(f"dtype must be 'bfloat16', or 'float16' on a GPU, not {dtype!r}")
        if loss_scale != "dynamic" and not isinstance(loss_scale, int | float | dict):
            raise ValueError(
                "loss_scale must be 'dynamic', a number or GradScaler's arguments, "
                f"not {loss_scale!r}"
            )
        OptimWrapper.__init__(self, **kwargs)  # AmpOptimWrapper's own asserts a GPU
        self.cast_dtype = _DTYPES[dtype]
        self._scale_update_param = loss_scale if isinstance(loss_scale, int | float) else None
        settings = loss_scale if isinstance(loss_scale, dict) else {}
        if self._scale_update_param is not None:
            settings = {"init_scale": float(loss_scale)}
        self.loss_scaler = torch.amp.GradScaler(device, enabled=dtype == "float16", **settings)


def enable_amp(cfg: Config) -> None:
    """Have the config's optimizer wrapper run in mixed precision, where it does not already.

    A subclass of `OptimWrapper` keeps what it does and is registered as `Amp<its name>`.

    Raises:
        LaunchError: for a config of several optimizer wrappers.
    """
    if "optimizer" not in cfg.optim_wrapper:
        raise LaunchError("--amp: set the type of each of the config's optimizer wrappers instead")
    kind = cfg.optim_wrapper.get("type", "OptimWrapper")
    if isinstance(kind, str):
        with OPTIM_WRAPPERS.switch_scope_and_registry(cfg.get("default_scope")) as registry:
            kind = registry.get(kind)
    if kind is None or issubclass(kind, AmpOptimWrapper | ApexOptimWrapper):
        return  # an unknown one is reported when it is built
    name = "PortableAmpOptimWrapper"
    if kind is not OptimWrapper:
        name = f"Amp{kind.__name__}"
        both = type(name, (kind, PortableAmpOptimWrapper), {})
        OPTIM_WRAPPERS.register_module(name, force=True, module=both)
    cfg.optim_wrapper.type = name
