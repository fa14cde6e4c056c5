"""What `torch.compile` needs on this machine, and what it makes of a layer."""

import torch
from torch import Tensor, nn

from mmseg_ext.cost.contest import inference_step, training_step
from mmseg_ext.doctor.findings import Finding, Unavailable, compared


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
    forms = {"compiled": torch.compile(module), "eager": module}
    parts = []
    for mode, step in (("training", training_step), ("inference", inference_step)):
        steps = {name: step(form, x) for name, form in forms.items()}
        text, _ = compared(mode, steps, device, rounds)
        parts.append(text)
    return Finding("ok", "; ".join(parts))
