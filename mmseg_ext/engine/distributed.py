"""Distributed training on the CPU, which mmengine (0.10.7 to 0.10.12) lacks in two places.

`init_dist` calls `torch.cuda.set_device` for every backend, and `Runner.wrap_model` passes
`device_ids`, which `DistributedDataParallel` refuses for modules on the CPU. So the gloo group is
made here, before the Runner, which then finds it, and the wrapper drops the device ids.
"""

import datetime
import os

import torch.distributed
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from torch import nn

from mmseg_ext.engine.launch_error import LaunchError

_RENDEZVOUS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """`MMDistributedDataParallel` for a module on the CPU: no device ids, gradients over gloo.

    Gradients are averaged over the processes. The losses of mmsegmentation are means over pixels,
    so that processes with batches of the same size give the gradient of their union.

    Raises:
        LaunchError: where the module holds SyncBatchNorm layers, which torch has for GPUs only.
    """

    def __init__(self, module: nn.Module, device_ids=None, **kwargs):
        refuse_synchronised_batch_norm(module)
        super().__init__(module=module, device_ids=None, **kwargs)


def refuse_synchronised_batch_norm(module: nn.Module) -> None:
    """torch has no SyncBatchNorm for several processes on the CPU.

    Raises:
        LaunchError: where the module holds one.
    """
    synced = [n for n, m in module.named_modules() if isinstance(m, nn.SyncBatchNorm)]
    if synced:
        raise LaunchError(
            f"this model has {len(synced)} SyncBatchNorm layers (the first: {synced[0]}), "
            "which torch cannot run in several processes on the CPU; set type='BN' (statistics "
            "per process) or type='GN' in its norm_cfg, or train in one process, where SyncBN "
            "turns into BN by itself"
        )


def _init_gloo(timeout: datetime.timedelta) -> None:
    """The group of this start: after a restart torchrun's store still holds the old addresses."""
    store, rank, world_size = next(torch.distributed.rendezvous("env://", timeout=timeout))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.PrefixStore(f"start_{start}", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )


def init_distributed(cfg: Config) -> None:
    """On a machine without an accelerator: make the gloo group and choose the CPU's wrapper.

    With `cfg.launcher = 'none'`, or where there is an accelerator, nothing is done: mmengine's
    Runner does the rest.

    Raises:
        LaunchError: if the launcher's environment variables are missing, or the launcher is not
            `pytorch` although there is no accelerator.
    """
    if cfg.launcher == "none":
        return
    if cfg.launcher == "pytorch":
        missing = [name for name in _RENDEZVOUS if name not in os.environ]
        if missing:
            raise LaunchError(
                f"--launcher pytorch: the variables {', '.join(missing)} are not set; start "
                "through tools/dist_train.sh, tools/dist_test.sh or torchrun"
            )
    if get_device() != "cpu":
        return
    if cfg.launcher != "pytorch":
        raise LaunchError(
            f"--launcher {cfg.launcher} needs GPUs and none is visible; on the CPU start through "
            "tools/dist_train.sh, which uses --launcher pytorch"
        )
    if not torch.distributed.is_initialized():
        seconds = cfg.get("env_cfg", {}).get("dist_cfg", {}).get("timeout", 1800)
        _init_gloo(datetime.timedelta(seconds=seconds))
    wrapper = cfg.get("model_wrapper_cfg") or {
        "broadcast_buffers": False,
        "find_unused_parameters": cfg.get("find_unused_parameters", False),
    }
    if wrapper.get("type", "MMDistributedDataParallel") == "MMDistributedDataParallel":
        wrapper["type"] = "CPUDistributedDataParallel"
    cfg.model_wrapper_cfg = wrapper
