"""The Inception network whose features FID and the inception score are defined on.

Paper: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision",
arXiv:1512.00567. The weights are those of TensorFlow's network of 2015-12-05, as pytorch-fid
carries them over; names and computation follow mseitzer/pytorch-fid,
`src/pytorch_fid/inception.py`, and the torchvision network that it patches: average pooling leaves
padding out of the mean, and the last block pools by maximum.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Conv(nn.Module):
    """Convolution without bias, batch norm, ReLU; padded so that a stride of one keeps the size."""

    def __init__(self, wide: int, out: int, size: int | tuple[int, int] = 1, **kwargs):
        super().__init__()
        self.conv = nn.Conv2d(wide, out, size, bias=False, **kwargs)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def _same(wide: int, out: int, *size: int) -> _Conv:
    return _Conv(wide, out, size, padding=tuple(side // 2 for side in size))


def _mean(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def _maximum(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 1, 1)


class _Branches(nn.Module):
    """Chains of convolutions on the same input, joined along the channels."""

    def _chain(self, x: Tensor, names: Iterable[str]) -> Tensor:
        for name in names:
            x = getattr(self, name)(x)
        return x


class _Grid35(_Branches):
    def __init__(self, wide: int, pooled: int):
        super().__init__()
        self.branch1x1 = _same(wide, 64, 1, 1)
        self.branch5x5_1 = _same(wide, 48, 1, 1)
        self.branch5x5_2 = _same(48, 64, 5, 5)
        self.branch3x3dbl_1 = _same(wide, 64, 1, 1)
        self.branch3x3dbl_2 = _same(64, 96, 3, 3)
        self.branch3x3dbl_3 = _same(96, 96, 3, 3)
        self.branch_pool = _same(wide, pooled, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(
            [
                self.branch1x1(x),
                self._chain(x, ("branch5x5_1", "branch5x5_2")),
                self._chain(x, (f"branch3x3dbl_{i}" for i in (1, 2, 3))),
                self.branch_pool(_mean(x)),
            ],
            1,
        )


class _To17(_Branches):
    def __init__(self, wide: int):
        super().__init__()
        self.branch3x3 = _Conv(wide, 384, 3, stride=2)
        self.branch3x3dbl_1 = _same(wide, 64, 1, 1)
        self.branch3x3dbl_2 = _same(64, 96, 3, 3)
        self.branch3x3dbl_3 = _Conv(96, 96, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        double = self._chain(x, (f"branch3x3dbl_{i}" for i in (1, 2, 3)))
        return torch.cat([self.branch3x3(x), double, F.max_pool2d(x, 3, 2)], 1)


class _Grid17(_Branches):
    def __init__(self, narrow: int):
        super().__init__()
        wide = 768
        self.branch1x1 = _same(wide, 192, 1, 1)
        self.branch7x7_1 = _same(wide, narrow, 1, 1)
        self.branch7x7_2 = _same(narrow, narrow, 1, 7)
        self.branch7x7_3 = _same(narrow, 192, 7, 1)
        self.branch7x7dbl_1 = _same(wide, narrow, 1, 1)
        self.branch7x7dbl_2 = _same(narrow, narrow, 7, 1)
        self.branch7x7dbl_3 = _same(narrow, narrow, 1, 7)
        self.branch7x7dbl_4 = _same(narrow, narrow, 7, 1)
        self.branch7x7dbl_5 = _same(narrow, 192, 1, 7)
        self.branch_pool = _same(wide, 192, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(
            [
                self.branch1x1(x),
                self._chain(x, (f"branch7x7_{i}" for i in (1, 2, 3))),
                self._chain(x, (f"branch7x7dbl_{i}" for i in (1, 2, 3, 4, 5))),
                self.branch_pool(_mean(x)),
            ],
            1,
        )


class _To8(_Branches):
    def __init__(self):
        super().__init__()
        wide = 768
        self.branch3x3_1 = _same(wide, 192, 1, 1)
        self.branch3x3_2 = _Conv(192, 320, 3, stride=2)
        self.branch7x7x3_1 = _same(wide, 192, 1, 1)
        self.branch7x7x3_2 = _same(192, 192, 1, 7)
        self.branch7x7x3_3 = _same(192, 192, 7, 1)
        self.branch7x7x3_4 = _Conv(192, 192, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        single = self._chain(x, ("branch3x3_1", "branch3x3_2"))
        triple = self._chain(x, (f"branch7x7x3_{i}" for i in (1, 2, 3, 4)))
        return torch.cat([single, triple, F.max_pool2d(x, 3, 2)], 1)


class _Grid8(_Branches):
    def __init__(self, wide: int, pool):
        super().__init__()
        self.pool = pool
        self.branch1x1 = _same(wide, 320, 1, 1)
        self.branch3x3_1 = _same(wide, 384, 1, 1)
        self.branch3x3_2a = _same(384, 384, 1, 3)
        self.branch3x3_2b = _same(384, 384, 3, 1)
        self.branch3x3dbl_1 = _same(wide, 448, 1, 1)
        self.branch3x3dbl_2 = _same(448, 384, 3, 3)
        self.branch3x3dbl_3a = _same(384, 384, 1, 3)
        self.branch3x3dbl_3b = _same(384, 384, 3, 1)
        self.branch_pool = _same(wide, 192, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch3x3_1(x)
        double = self._chain(x, ("branch3x3dbl_1", "branch3x3dbl_2"))
        return torch.cat(
            [
                self.branch1x1(x),
                self.branch3x3_2a(single),
                self.branch3x3_2b(single),
                self.branch3x3dbl_3a(double),
                self.branch3x3dbl_3b(double),
                self.branch_pool(self.pool(x)),
            ],
            1,
        )


class Inception(nn.Module):
    """uint8 pictures of any size to the 2048 features before the classifier, `fc`."""

    def __init__(self):
        super().__init__()
        self.Conv2d_1a_3x3 = _Conv(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = _Conv(32, 32, 3)
        self.Conv2d_2b_3x3 = _same(32, 64, 3, 3)
        self.maxpool1 = nn.MaxPool2d(3, 2)
        self.Conv2d_3b_1x1 = _same(64, 80, 1, 1)
        self.Conv2d_4a_3x3 = _Conv(80, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, 2)
        self.Mixed_5b = _Grid35(192, 32)
        self.Mixed_5c = _Grid35(256, 64)
        self.Mixed_5d = _Grid35(288, 64)
        self.Mixed_6a = _To17(288)
        self.Mixed_6b = _Grid17(128)
        self.Mixed_6c = _Grid17(160)
        self.Mixed_6d = _Grid17(160)
        self.Mixed_6e = _Grid17(192)
        self.Mixed_7a = _To8()
        self.Mixed_7b = _Grid8(1280, _mean)
        self.Mixed_7c = _Grid8(2048, _maximum)
        self.fc = nn.Linear(2048, 1008)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 pictures (B, 3, H, W) to features (B, 2048)."""
        x = images.to(self.fc.weight.dtype) / 255
        x = 2 * F.interpolate(x, size=(299, 299), mode="bilinear", align_corners=False) - 1
        for name, layer in self.named_children():
            if name != "fc":
                x = layer(x)
        return x.mean((2, 3))
