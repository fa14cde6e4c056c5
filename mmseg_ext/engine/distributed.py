"""Process groups and model wrappers for training in several processes, with or without a GPU.

mmengine's `init_dist` (0.10.7 to 0.10.12) calls `torch.cuda.set_device` for every backend, and
`Runner.wrap_model` passes `device_ids`, which `DistributedDataParallel` refuses on the CPU.
`init_distributed` creates the process group before the Runner, which then uses it.
"""

import datetime
import logging
import os
import subprocess
from typing import Any

import torch.distributed
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.model import MMDistributedDataParallel
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.registry import MODEL_WRAPPERS
from torch import nn

from mmseg_ext.errors import LaunchError

_RENDEZVOUS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_SLURM = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """`MMDistributedDataParallel` for a model on the CPU.

    Gradients are averaged over the processes. The losses of mmsegmentation are means over pixels,
    so processes with batches of equal size compute the gradient of the combined batch. SyncBN,
    which torch implements only for GPUs, becomes BN with one warning.
    """

    def __init__(self, module: nn.Module, device_ids=None, **kwargs):
        if any(isinstance(part, nn.SyncBatchNorm) for part in module.modules()):
            module = revert_sync_batchnorm(module)
            print_log(
                "norm_cfg: SyncBN does not run on a CPU; using BN, so statistics differ from a GPU "
                "run",
                logger="current",
                level=logging.WARNING,
            )
        super().__init__(module=module, device_ids=None, **kwargs)


def init_distributed(cfg: Config) -> None:
    """Create the process group that `cfg.launcher` asks for: nccl on GPUs, gloo without a GPU.

    Do nothing for `launcher='none'`, and for MPI, whose group mmengine's Runner creates.

    Raises:
        LaunchError: if environment variables of the launcher are missing.
    """
    if cfg.launcher in ("none", "mpi"):
        return
    settings = cfg.get("env_cfg", {}).get("dist_cfg", {})
    if cfg.launcher == "slurm":
        _set_slurm_rendezvous(settings.get("port"))
    missing = [name for name in _RENDEZVOUS if name not in os.environ]
    if missing:
        raise LaunchError(
            f"--launcher {cfg.launcher}: the variables {', '.join(missing)} are not set; start "
            "through tools/dist_train.sh or tools/slurm_train.sh, or with torchrun and "
            "--launcher pytorch"
        )
    cuda = get_device() == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    if not torch.distributed.is_initialized():
        backend = settings.get("backend", "nccl") if cuda else "gloo"
        _create_group(backend, settings.get("timeout"))
    wrapper = cfg.get("model_wrapper_cfg") or {
        "broadcast_buffers": False,
        "find_unused_parameters": cfg.get("find_unused_parameters", False),
        "gradient_as_bucket_view": True,  # else DDP keeps a second copy of all gradients
    }
    if not cuda and wrapper.get("type", "MMDistributedDataParallel") == "MMDistributedDataParallel":
        wrapper["type"] = "CPUDistributedDataParallel"
    cfg.model_wrapper_cfg = wrapper


def _create_group(backend: str, seconds: float | None) -> None:
    """Create the process group from torch's environment variables.

    Args:
        seconds: the limit of an operation of the group; None is torch's default.
    """
    store, rank, world_size = next(torch.distributed.rendezvous("env://"))
    # After a restart torchrun's store still contains the addresses (gloo) and the unique id (nccl)
    # of the dead processes. A prefix for each start hides them.
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = torch.distributed.PrefixStore(f"start_{start}", store)
    limit: Any = {}  # torch 2.1 takes no None
    if seconds is not None:
        limit = {"timeout": datetime.timedelta(seconds=seconds)}
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, **limit
    )


def _set_slurm_rendezvous(port: int | None) -> None:
    """Set torch's variables in a Slurm job; the default address is the job's first host."""
    for name, slurm in _SLURM.items():
        if slurm in os.environ:
            os.environ[name] = os.environ[slurm]
    os.environ["MASTER_PORT"] = str(port or os.environ.get("MASTER_PORT", 29500))
    if "MASTER_ADDR" in os.environ or "SLURM_NODELIST" not in os.environ:
        return
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_NODELIST"]]
    hosts = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    os.environ["MASTER_ADDR"] = hosts[0]
