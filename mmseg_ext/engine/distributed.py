"""Distributed training on the CPU, which mmengine (0.10.7 to 0.10.12) lacks in two places.

`init_dist` calls `torch.cuda.set_device` for every backend, and `Runner.wrap_model` passes
`device_ids`, which `DistributedDataParallel` refuses for modules on the CPU. So the gloo group is
made here, before the Runner, which then finds it, and the wrapper drops the device ids.

Slurm's variables become torch's here too, with the same meaning as in mmengine, which does it after
asking for a GPU.
"""

import datetime
import os
import subprocess

import torch.distributed
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from torch import nn

from mmseg_ext.errors import LaunchError

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


def slurm_process() -> dict[str, str]:
    """torch's names for the numbers that Slurm gave this process, of those that it gave."""
    given = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
    return {name: os.environ[slurm] for name, slurm in given.items() if slurm in os.environ}


def _set_slurm_rendezvous(port: int | None) -> None:
    """The variables of `_RENDEZVOUS`: the first host of the job, and its port 29500 or `port`.

    MASTER_ADDR and, without `port`, MASTER_PORT stay as they are where they are set.

    Raises:
        LaunchError: outside a job step of Slurm, or where no host can be found.
    """
    process = slurm_process()
    if len(process) < 3:
        raise LaunchError(
            "--launcher slurm: SLURM_PROCID, SLURM_LOCALID and SLURM_NTASKS are not all set; start "
            "through tools/slurm_train.sh, tools/slurm_test.sh or srun"
        )
    os.environ.update(process)
    os.environ["MASTER_PORT"] = str(port or os.environ.get("MASTER_PORT", 29500))
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = _first_host(os.environ.get("SLURM_NODELIST", ""))


def _first_host(nodes: str) -> str:
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise LaunchError(
            f"--launcher slurm: `{' '.join(command)}` names no host; set MASTER_ADDR to the first "
            "machine of the job"
        ) from error


def process_wrapper(cfg: Config, given: dict | None) -> dict:
    """The settings of the model's wrapper in several processes, `given` ones first.

    On the CPU mmengine's own becomes `CPUDistributedDataParallel`.
    """
    wrapper = given or {
        "broadcast_buffers": False,
        "find_unused_parameters": cfg.get("find_unused_parameters", False),
    }
    wrapper.setdefault("type", "MMDistributedDataParallel")
    if get_device() == "cpu" and wrapper["type"] == "MMDistributedDataParallel":
        wrapper["type"] = "CPUDistributedDataParallel"
    return wrapper


def init_distributed(cfg: Config) -> None:
    """On a machine without an accelerator: make the gloo group and choose the CPU's wrapper.

    With `cfg.launcher = 'none'`, or where there is an accelerator, nothing is done: mmengine's
    Runner does the rest.

    Raises:
        LaunchError: if the launcher's environment variables are missing, or the launcher is not
            `pytorch` or `slurm` although there is no accelerator.
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
    settings = cfg.get("env_cfg", {}).get("dist_cfg", {})
    if cfg.launcher == "slurm":
        _set_slurm_rendezvous(settings.get("port"))
    if get_device() != "cpu":
        return
    if cfg.launcher not in ("pytorch", "slurm"):
        raise LaunchError(
            f"--launcher {cfg.launcher} needs GPUs and none is visible; on the CPU start through "
            "tools/dist_train.sh, which uses --launcher pytorch"
        )
    if not torch.distributed.is_initialized():
        _init_gloo(datetime.timedelta(seconds=settings.get("timeout", 1800)))
    cfg.model_wrapper_cfg = process_wrapper(cfg, cfg.get("model_wrapper_cfg"))
