"""Reading a file of weights. No path here unpickles: a file that needs it is refused."""

import pickle
from pathlib import Path

import torch
from torch import Tensor

# Where published checkpoints keep the state dict: mmengine, RMT and timm, EANet and EMANet, EMA.
_WRAPPERS = ("state_dict", "model", "net", "state_dict_ema")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The name -> tensor mapping in a `.safetensors` or torch file, on the CPU.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: for a file that is broken, needs unpickling of arbitrary objects (which could
            run code), or holds no state dict.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint file")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path}: not a readable safetensors file ({error})") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path}: holds objects other than tensors and plain containers; loading them could "
            "run code, so it is refused. If you trust its source, save its state dict alone first."
        ) from error
    except (RuntimeError, EOFError) as error:
        raise ValueError(f"{path}: not a readable torch file ({error})") from error
    return unwrap_state_dict(content, str(path))


def unwrap_state_dict(content: object, source: str) -> dict[str, Tensor]:
    """The state dict inside `content`, which is one, or wraps one under a usual key."""
    if isinstance(content, dict):
        for key in _WRAPPERS:
            if isinstance(content.get(key), dict):
                content = content[key]
                break
        if content and all(isinstance(v, Tensor) for v in content.values()):
            return {k.removeprefix("module."): v for k, v in content.items()}
    raise ValueError(f"{source}: holds no state dict (a mapping from names to tensors)")
