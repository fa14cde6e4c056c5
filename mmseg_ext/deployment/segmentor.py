"""What is exported: a segmentor from RGB values to class scores, normalisation included."""

import copy

import torch
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.models import EncoderDecoder
from mmseg.models.utils import Upsample
from torch import Tensor, nn
from torch.nn import functional as F

from mmseg_ext.deployment.fusion import fuse_model
from mmseg_ext.segmentors import StripEncoderDecoder


class WholeImageSegmentor(nn.Module):
    """RGB images (B, 3, H, W) of 0 to 255, float32, to class scores (B, classes, H, W).

    The scores are what `EncoderDecoder` gives for whole images before softmax: the exported file
    sees one window, so a config that tests by sliding windows is cut into windows by who runs the
    file. The auxiliary heads are left behind, and synchronised batch norms become plain ones.

    Args:
        segmentor: an `EncoderDecoder` or `StripEncoderDecoder`; it is copied, not changed.
        fuse: fold batch norms into convolutions and compose external attention (`fuse_model`).

    Raises:
        ValueError: for another kind of segmentor, or one without a data preprocessor that
            normalises.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, segmentor: EncoderDecoder, fuse: bool = False):
        super().__init__()
        if type(segmentor) not in (EncoderDecoder, StripEncoderDecoder):
            raise ValueError(f"segmentor must be an EncoderDecoder, not {type(segmentor).__name__}")
        preprocessor = segmentor.data_preprocessor
        if not hasattr(preprocessor, "mean"):
            raise ValueError("segmentor: its data_preprocessor has no mean and std")
        # Pipelines load BGR; a model that does not convert was trained on it.
        self.bgr = not preprocessor._channel_conversion
        self.register_buffer("mean", preprocessor.mean.float().reshape(1, 3, 1, 1))  # (1, 3, 1, 1)
        self.register_buffer("std", preprocessor.std.float().reshape(1, 3, 1, 1))  # (1, 3, 1, 1)
        parts = nn.ModuleDict({"backbone": segmentor.backbone})
        if segmentor.with_neck:
            parts["neck"] = segmentor.neck
        parts["decode_head"] = segmentor.decode_head
        parts = revert_sync_batchnorm(copy.deepcopy(parts))
        _free_of_size(parts)
        self.parts = fuse_model(parts) if fuse else parts
        self.align_corners = segmentor.align_corners
        self.num_classes = segmentor.out_channels
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        x = images.flip(1) if self.bgr else images
        features = self.parts["backbone"]((x - self.mean) / self.std)
        if "neck" in self.parts:
            features = self.parts["neck"](features)
        scores = self.parts["decode_head"](features)
        if isinstance(scores, (tuple, list)):  # DANet's: the sum, then its two branches
            scores = scores[0]
        return F.interpolate(
            scores, size=images.shape[2:], mode="bilinear", align_corners=self.align_corners
        )  # (B, classes, H, W)


def _free_of_size(module: nn.Module) -> None:
    """Replace mmsegmentation's `Upsample`, whose int() of a size makes a constant of it.

    By a whole factor torch's module computes the same.
    """
    for name, child in module.named_children():
        if (
            isinstance(child, Upsample)
            and not child.size
            and float(child.scale_factor).is_integer()
        ):
            upsample = nn.Upsample(None, child.scale_factor, child.mode, child.align_corners)
            setattr(module, name, upsample)
        else:
            _free_of_size(child)


def random_images(size: tuple[int, int], batch: int = 1, seed: int = 0) -> Tensor:
    """Images of noise (batch, 3, H, W) with values of 0 to 255."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, 3, *size, generator=generator) * 255
