"""Training in several processes: without a GPU, under Slurm, and with the model in shards.

mmengine (0.10.7 to 0.10.12) lacks the first: `init_dist` calls `torch.cuda.set_device` for every
backend, and `Runner.wrap_model` passes `device_ids`, which `DistributedDataParallel` refuses for
modules on the CPU. So the gloo group is made here, before the Runner, which then finds it, and the
wrapper drops the device ids. mmengine's FSDP wrapper uses torch's first FSDP, which flattens
parameters and needs a GPU; `FullyShardedModel` uses `fully_shard`.
"""

import datetime
import os
import subprocess
from typing import Any

import torch.distributed
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from torch import Tensor, nn

try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor
except ImportError:  # torch 2.4 and 2.5
    from torch.distributed._composable.fsdp import fully_shard
    from torch.distributed._tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

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


@MODEL_WRAPPERS.register_module()
class FullyShardedModel:
    """Shards `module` in place and gives it back: `model_wrapper_cfg = dict(type="...")`.

    The config needs `runner_type = 'DurableRunner'`. Each process holds a part of the parameters,
    gradients and optimizer states of every large block; a block's parameters are put together while
    it runs. Checkpoints stay ordinary ones: state dicts give and take whole tensors, which needs
    every process at once.

    Weights are initialised first, in every process alike, so that they are those of one process.

    Args:
        module: the model, the same in every process.
        block_parameters: a block, an element of a `ModuleList` or `Sequential`, is a unit of its
            own from this many parameters on; the rest of the model is one more.
    """

    def __new__(cls, module: nn.Module, block_parameters: int = 500_000) -> nn.Module:
        if hasattr(module, "init_weights"):
            module.init_weights()
        for block in reversed(_blocks(module, block_parameters)):  # inner ones first
            fully_shard(block)
        fully_shard(module)
        for part in module.modules():
            if any(isinstance(p, DTensor) for p in part.parameters(recurse=False)):
                part.register_load_state_dict_pre_hook(_cut_own)
        module.register_state_dict_post_hook(_make_whole)
        return module


def _blocks(module: nn.Module, least: int) -> list[nn.Module]:
    """Elements of lists and sequences that are called as modules and large enough, outer first."""
    lists = [m for m in module.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    blocks = [block for m in lists for block in m if not isinstance(block, nn.ModuleList)]
    unique = dict.fromkeys(blocks)
    return [b for b in unique if sum(p.numel() for p in b.parameters()) >= least]


def whole(value: object) -> object:
    """The whole of a tensor in shards, which every process must ask for; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def cut_like(value: object, parameter: Tensor) -> object:
    """A whole tensor of the shape of `parameter`, in shards as it is; anything else as it is."""
    if not isinstance(parameter, DTensor) or isinstance(value, DTensor):
        return value
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def _cut_own(module: nn.Module, state: dict[str, Any], prefix: str, *args) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if prefix + name in state:
            state[prefix + name] = cut_like(state[prefix + name], parameter)


def _make_whole(module: nn.Module, state: dict[str, Any], prefix: str, *args) -> None:
    for name, value in state.items():
        state[name] = whole(value)


def whole_optimizer_states(optimizer: Optimizer) -> None:
    """Let `optimizer` give and take whole tensors, whatever its parameters' shards."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(isinstance(p, DTensor) for p in parameters):
        return

    def make_whole(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        entries = state["state"].items()
        return {**state, "state": {i: {k: whole(v) for k, v in e.items()} for i, e in entries}}

    def cut(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        entries = state["state"].items()
        states = {i: {k: cut_like(v, parameters[i]) for k, v in e.items()} for i, e in entries}
        return {**state, "state": states}

    optimizer.register_state_dict_post_hook(make_whole)
    optimizer.register_load_state_dict_pre_hook(cut)
