"""Inference with a trained segmentor: models by name, prediction, fusion and export."""

import copy
from typing import Any

from torch import nn


def fuse_model(model: nn.Module) -> nn.Module:
    """Return a copy of `model` in evaluation mode that computes the same with fewer operations.

    Each module with a `fuse()` method is replaced by its result: external attention is composed,
    with its batch norm folded in.
    """
    model = copy.deepcopy(model)
    model.eval()  # a separate line, because mmseg's ResNet returns None
    return _fused(model)


def _fused(module: nn.Module) -> nn.Module:
    fuse: Any = getattr(module, "fuse", None)
    if fuse is not None:
        return fuse()
    for name, child in module.named_children():
        setattr(module, name, _fused(child))
    return module
