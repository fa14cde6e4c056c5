"""Networks of timm as backbones: maps at several strides, of images of any size.

No paper. mmsegmentation's `TIMMBackbone` passes on what `timm.create_model(features_only=True)`
returns. This class differs from it:

- Images are padded on the right and below, so patches and strides fit, and the maps are cut to the
  part of the image.
- The maps of a plain transformer, which all have the stride of its patches, become a pyramid of
  four strides, by the layers of mmsegmentation's `Feature2Pyramid` (for BEiT and MAE).
- Weights come from `init_cfg` or a checkpoint, and are read without running code. Building the
  model never downloads.
"""

from collections.abc import Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmseg_ext.backbones.backbone import FeatureInfo
from mmseg_ext.environment import require_package
from mmseg_ext.errors import StackError, one_line

FINE_PATCH = 8  # up to which the first map of a pyramid has twice the patch's resolution, else 4


def import_timm() -> ModuleType:
    """Return timm.

    Raises:
        StackError: if it or a package that it needs is missing.
    """
    require_package("timm", "timm")
    try:
        import timm
    except ImportError as error:
        raise StackError(
            f"timm: cannot be imported ({one_line(error, 150)}); install it"
        ) from error
    return timm


class TimmEncoder(BaseModule):
    """A network of timm that maps images (B, C, H, W) to maps at several strides, finest first.

    Map i is (B, C_i, ceil(H / stride), ceil(W / stride)). A convolutional or hierarchical network
    returns its own maps. Of a plain transformer with patches of p pixels, four maps of equal stride
    become strides p/4, p/2, p and 2p, and p/2 to 4p for patches of up to 8 pixels.

    Args:
        model_name: a name of `timm.list_models()`, with or without the tag of weights.
        out_indices: the maps, as for `timm.create_model`; four of a plain transformer.
        in_channels: channels of the image.
        norm_cfg: the norm of a plain transformer's pyramid.
        init_cfg: see mmengine's `BaseModule`; the names of weights are timm's after `model.`.
        **kwargs: further arguments of `timm.create_model`, such as `drop_path_rate=0.1`.

    Raises:
        StackError: if timm is missing.
        ValueError: if timm does not know the model, or cannot return these maps.
    """

    # With dynamic sizes torch.export takes minutes for the padding, and the files are wrong.
    exports_one_size = True

    def __init__(
        self,
        model_name: str,
        out_indices: Sequence[int],
        in_channels: int = 3,
        norm_cfg: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
        **kwargs,
    ):
        super().__init__(init_cfg)
        try:
            net = import_timm().create_model(
                model_name,
                pretrained=False,
                features_only=True,
                feature_cls="getter",  # keeps timm's names of weights
                out_indices=tuple(out_indices),
                in_chans=in_channels,
                **kwargs,
            )
            self.channels = list(net.feature_info.channels())
            self.strides = list(net.feature_info.reduction())
        except (RuntimeError, TypeError, AttributeError, AssertionError, IndexError) as error:
            text = f"TimmEncoder: timm cannot build maps {list(out_indices)} of {model_name}"
            raise ValueError(f"{text}: {one_line(error, 200)}") from error
        self.model, self.out_indices = net.model, net.out_indices
        self.pyramid = None
        if len(self.strides) > 1 and len(set(self.strides)) == 1:
            (width, *_), (patch, *_) = self.channels, self.strides
            if len(self.strides) != 4:
                raise ValueError(f"out_indices={list(out_indices)}: {model_name} needs four")
            up = width, norm_cfg or {"type": "BN"}
            layers = [_upsample(*up), _upsample(*up, fine=False), nn.Identity(), nn.MaxPool2d(2)]
            if patch <= FINE_PATCH:
                layers = [*layers[1:], nn.MaxPool2d(4)]
            factors = (0.5, 1, 2, 4) if patch <= FINE_PATCH else (0.25, 0.5, 1, 2)
            self.strides = [patch * factor for factor in factors]
            self.pyramid = nn.ModuleList(layers)
        self.multiple = int(max(self.strides))  # of the sides of padded images

    @property
    def feature_info(self) -> FeatureInfo:
        """Channels, stride and module of each returned map, as in timm."""
        info = FeatureInfo()
        for i, (width, stride) in enumerate(zip(self.channels, self.strides, strict=True)):
            module = "model" if self.pyramid is None else f"pyramid.{i}"
            info.append({"num_chs": width, "reduction": stride, "module": module})
        return info

    def init_weights(self) -> None:
        """Load the weights of `init_cfg`; without one, keep timm's initialization."""
        if self.init_cfg:
            super().init_weights()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map images (B, C, H, W) to maps (B, C_i, h_i, w_i)."""
        height, width = images.shape[2:]
        x = F.pad(images, (0, -width % self.multiple, 0, -height % self.multiple))
        if x.device.type == "cpu":  # 0.8 of the time of an EfficientNet's step, others are equal
            x = x.contiguous(memory_format=torch.channels_last)
        maps = self.model.forward_intermediates(
            x, indices=self.out_indices, output_fmt="NCHW", intermediates_only=True
        )
        if self.pyramid is not None:
            maps = [layer(y) for layer, y in zip(self.pyramid, maps, strict=True)]
        cut = []
        for y, stride in zip(maps, self.strides, strict=True):
            over, under = stride.as_integer_ratio()  # of 3.5 pixels: 7, 2
            cut.append(y[..., : -(-height * under // over), : -(-width * under // over)])
        return tuple(cut)


def _upsample(width: int, norm_cfg: dict, fine: bool = True) -> nn.Module:
    """Return a layer for twice the resolution, with `fine` four times."""
    first = nn.ConvTranspose2d(width, width, 2, 2)
    if not fine:
        return first
    norm = build_norm_layer(norm_cfg, width)[1]
    return nn.Sequential(first, norm, nn.GELU(), nn.ConvTranspose2d(width, width, 2, 2))
