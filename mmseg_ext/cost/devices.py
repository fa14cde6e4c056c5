"""Devices of the command line, checked before the work starts."""

import torch


def usable_device(name: str) -> torch.device:
    """The device of this name; a ValueError says why PyTorch cannot use it here."""
    try:
        return torch.empty(0, device=name).device
    except (AssertionError, RuntimeError) as error:  # the first where PyTorch is built without CUDA
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
