"""Training with parameters, gradients and optimizer states in shards: torch's `fully_shard`.

    model_wrapper_cfg = dict(type="FullyShardedModel")

in a config with `runner_type = 'DurableRunner'`, started in several processes. Each holds a part
of every large block; a block's parameters are put together while it runs. Checkpoints stay ordinary
ones: state dicts give and take whole tensors, which needs every process at once.

mmengine's own FSDP wrapper uses torch's first FSDP, which flattens parameters and needs a GPU.
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
