"""Training with parameters, gradients and optimizer states in shards: torch's `fully_shard`.

    model_wrapper_cfg = dict(type="FullyShardedModel")

in a config with `runner_type = 'DurableRunner'`, started in several processes. Each holds a part
of every large block; a block's parameters are put together while it runs. Checkpoints stay ordinary
ones: who asks for a state dict gets whole tensors, and whole tensors are cut when one is loaded.

mmengine's own FSDP wrapper and strategy use torch's first FSDP, which flattens parameters and needs
a GPU. Collecting whole tensors takes every process: `DurableRunner.save_checkpoint` sees to it.
"""

from typing import Any

from mmengine.registry import MODEL_WRAPPERS
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer


@MODEL_WRAPPERS.register_module()
class FullyShardedModel:
    """Shards `module` in place and gives it back; the type to name in `model_wrapper_cfg`.

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
                part.register_load_state_dict_pre_hook(_cut)
        module.register_state_dict_post_hook(_put_together)
        return module


def _blocks(module: nn.Module, least: int) -> list[nn.Module]:
    """Elements of lists and sequences that are called as modules and large enough, outer first."""
    lists = [m for m in module.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    blocks = [block for m in lists for block in m if not isinstance(block, nn.ModuleList)]
    unique = dict.fromkeys(blocks)
    return [b for b in unique if sum(p.numel() for p in b.parameters()) >= least]


def _like(value: Tensor, parameter: DTensor) -> DTensor:
    """A whole tensor cut as `parameter` is; every process has the whole one."""
    value = value.to(parameter.device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _cut(module: nn.Module, state: dict[str, Any], prefix: str, *args) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        value = state.get(prefix + name)
        same = isinstance(value, Tensor) and value.shape == parameter.shape
        if isinstance(parameter, DTensor) and same and not isinstance(value, DTensor):
            state[prefix + name] = _like(value, parameter)


def _put_together(module: nn.Module, state: dict[str, Any], prefix: str, *args) -> None:
    for name, value in state.items():
        if isinstance(value, DTensor):
            state[name] = value.full_tensor()


def whole_optimizer_states(optimizer: Optimizer) -> None:
    """Let `optimizer` give and take whole tensors, whatever its parameters' shards."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(isinstance(p, DTensor) for p in parameters):
        return

    def put_together(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        states = {
            i: {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in entry.items()}
            for i, entry in state["state"].items()
        }
        return {**state, "state": states}

    def cut(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        states = {i: _cut_entry(entry, parameters[i]) for i, entry in state["state"].items()}
        return {**state, "state": states}

    optimizer.register_state_dict_post_hook(put_together)
    optimizer.register_load_state_dict_pre_hook(cut)


def _cut_entry(entry: dict[str, Any], parameter: nn.Parameter) -> dict[str, Any]:
    """One parameter's states; those of its shape are cut as it is."""
    if not isinstance(parameter, DTensor):
        return entry
    return {
        key: _like(value, parameter)
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for key, value in entry.items()
    }


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """This process's part of a gradient."""
    gradient = parameter.grad
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def with_local_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Set `parameter.grad` from this process's part."""
    gradient = gradient.to(parameter.device)
    if isinstance(parameter, DTensor):
        gradient = DTensor.from_local(
            gradient, parameter.device_mesh, parameter.placements, run_check=False,
            shape=parameter.shape, stride=parameter.stride(),
        )  # fmt: skip
    parameter.grad = gradient


def collect(optimizer: Optimizer) -> None:
    """Take part in what the first process's `optimizer.state_dict()` needs of the others.

    Shards are put together by every process; torch's ZeroRedundancyOptimizer sends its parts to
    the first.
    """
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(to=0)
    elif any(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"]):
        optimizer.state_dict()
