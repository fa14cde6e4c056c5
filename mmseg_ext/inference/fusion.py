"""The inference form of a model: fewer operations, the same results."""

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

# Pairs of a convolution and a norm that follow each other in a block's forward. (mmseg's ResNet has
# the norms' names as properties; its attributes are bn1 to bn3.)
_BLOCK_PAIRS = {
    "BasicBlock": (("conv1", "norm1_name"), ("conv2", "norm2_name")),
    "Bottleneck": (("conv1", "norm1_name"), ("conv2", "norm2_name"), ("conv3", "norm3_name")),
    "ConvModule": (("conv", "norm_name"),),
    "ResNet": (("conv1", "norm1_name"),),
    "ResNetV1c": (("conv1", "norm1_name"),),
}


def fuse_model(model: nn.Module) -> nn.Module:
    """Return a copy of `model` in evaluation mode that computes the same with fewer operations.

    Each module with a `fuse()` method is replaced by its result: external attention is composed,
    with its batch norm folded in. Each batch norm that directly follows a convolution in an
    `nn.Sequential`, mmcv's `ConvModule` or mmseg's residual blocks is folded into it.
    """
    model = copy.deepcopy(model)
    model.eval()  # a separate line, because mmseg's ResNet returns None
    if hasattr(model, "fuse"):
        return model.fuse()
    _fuse_inside(model)
    return model


def _fuse_inside(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if hasattr(child, "fuse"):
            setattr(module, name, child.fuse())
        else:
            _fuse_inside(child)
    if isinstance(module, nn.Sequential):
        _fold(module, list(zip(module._modules, list(module._modules)[1:], strict=False)))
    elif type(module).__name__ in _BLOCK_PAIRS:
        pairs = _BLOCK_PAIRS[type(module).__name__]
        if getattr(module, "order", ("conv", "norm"))[:2] == ("conv", "norm"):
            _fold(module, [(conv, getattr(module, norm, None)) for conv, norm in pairs])


def _fold(module: nn.Module, pairs: list[tuple[str, str | None]]) -> None:
    for conv_name, norm_name in pairs:
        conv, norm = module._modules.get(conv_name), module._modules.get(norm_name)
        foldable = isinstance(conv, nn.Conv2d) and isinstance(norm, _BatchNorm)
        if foldable and norm.running_mean is not None:
            module._modules[conv_name] = fuse_conv_bn_eval(conv, norm)
            module._modules[norm_name] = nn.Identity()
