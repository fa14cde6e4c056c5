"""What `torch.compile` needs on this machine, and what it makes of a layer."""

from functools import partial

import torch
from torch import Tensor, nn

from mmseg_ext.doctor.contest import contest, sentence
from mmseg_ext.doctor.findings import Finding, Unavailable


def require_compiler(device: torch.device) -> None:
    """What `torch.compile` writes for this device can be compiled here.

    Raises:
        Unavailable: where it can't, with what is missing.
    """
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise Unavailable("torch.compile needs Triton, which is not there for this GPU")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise Unavailable(
            "torch.compile needs a C++ compiler on a CPU: install g++, or name one in CXX"
        ) from error


def check_compiled(module: nn.Module, x: Tensor, device: torch.device, rounds: int) -> Finding:
    """Time and memory of the compiled layer against the layer as it is, for an input on `device`.

    The layer's own choices among its forms hold in both.
    """
    require_compiler(device)
    forms = {"compiled": partial(torch.compile(module), x), "eager": partial(module, x)}
    parts = []
    for name in ("training", "inference"):
        module.train(name == "training")
        leaves = [x, *module.parameters()] if name == "training" else None
        results = contest(forms, leaves, device, rounds)
        parts.append(sentence(name, results, "compiled", "eager"))
    return Finding("ok", "; ".join(parts))
