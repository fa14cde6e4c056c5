"""Several processes on a machine without a GPU, which mmengine (0.10.7 to 0.10.12) lacks.

`init_dist` calls `torch.cuda.set_device` for every backend, and `Runner.wrap_model` passes
`device_ids`, which `DistributedDataParallel` refuses for modules on the CPU. So the gloo group is
made here, before the Runner, which then finds it, and the wrapper drops the device ids.
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
_SLURM = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """`MMDistributedDataParallel` for a module on the CPU: no device ids, gradients over gloo.

    Gradients are averaged over the processes. The losses of mmsegmentation are means over pixels,
    so that processes with batches of the same size give the gradient of their union.
    """

    def __init__(self, module: nn.Module, device_ids=None, **kwargs):
        super().__init__(module=module, device_ids=None, **kwargs)


def init_distributed(cfg: Config) -> None:
    """Name the processes of Slurm as torch does; without a GPU, make the gloo group.

    mmengine's Runner does the rest, and all of it with `cfg.launcher = 'none'`.

    Raises:
        LaunchError: if variables of the launcher are missing.
    """
    if cfg.launcher == "none":
        return
    settings, cpu = cfg.get("env_cfg", {}).get("dist_cfg", {}), get_device() == "cpu"
    if cfg.launcher == "slurm":
        _set_slurm_rendezvous(settings.get("port"))
    missing = [name for name in _RENDEZVOUS if name not in os.environ]
    if missing and (cpu or cfg.launcher == "pytorch"):
        raise LaunchError(
            f"--launcher {cfg.launcher}: the variables {', '.join(missing)} are not set; start "
            "through tools/dist_train.sh, tools/dist_test.sh or torchrun, with --launcher pytorch"
        )
    if not cpu:
        return
    if not torch.distributed.is_initialized():
        _init_gloo(datetime.timedelta(seconds=settings.get("timeout", 1800)))
    unused = cfg.get("find_unused_parameters", False)
    default = {"broadcast_buffers": False, "find_unused_parameters": unused}
    wrapper = cfg.get("model_wrapper_cfg") or default
    if wrapper.get("type", "MMDistributedDataParallel") == "MMDistributedDataParallel":
        wrapper["type"] = "CPUDistributedDataParallel"
    cfg.model_wrapper_cfg = wrapper


def _init_gloo(timeout: datetime.timedelta) -> None:
    """The group of this start: after a restart torchrun's store still holds the old addresses."""
    store, rank, world_size = next(torch.distributed.rendezvous("env://", timeout=timeout))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = torch.distributed.PrefixStore(f"start_{start}", store)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
    )


def name_slurm_process() -> None:
    """Give torch's names to the numbers that Slurm gave this process."""
    given = {name: os.environ[slurm] for name, slurm in _SLURM.items() if slurm in os.environ}
    os.environ.update(given)


def _set_slurm_rendezvous(port: int | None) -> None:
    """torch's variables: the job's first host where no address is set, and port 29500 or `port`."""
    name_slurm_process()
    os.environ["MASTER_PORT"] = str(port or os.environ.get("MASTER_PORT", 29500))
    if "MASTER_ADDR" in os.environ:
        return
    command = ["scontrol", "show", "hostnames", os.environ.get("SLURM_NODELIST", "")]
    try:
        hosts = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        os.environ["MASTER_ADDR"] = hosts[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise LaunchError(
            f"--launcher slurm: `{' '.join(command)}` names no host; start through "
            "tools/slurm_train.sh, tools/slurm_test.sh or srun, or set MASTER_ADDR to the first "
            "machine of the job"
        ) from error
