"""Plain ways to compute position lambdas (arXiv 2102.08602), for measurements and tests.

Every way takes values (B, u, v, H, W) and embeddings (k, u, R, S), indexed by the offset of the
context from the query, and returns position lambdas (B, k, v, H, W).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.reference import Plain
from mmseg_ext.layers import LambdaLayer


def conv3d(values: Tensor, weight: Tensor) -> Tensor:
    """Convolve over (v, H, W) with a kernel 1 x R x S, as the public implementations do."""
    padding = (0, weight.shape[2] // 2, weight.shape[3] // 2)
    return F.conv3d(values, weight.unsqueeze(2), padding=padding)


def table(values: Tensor, weight: Tensor) -> Tensor:
    """Gather embeddings to (N, N, k, u), then multiply: the public form of global context."""
    height, width = values.shape[3:]
    middle = (weight.shape[2] // 2, weight.shape[3] // 2)
    y = torch.arange(height, device=values.device).repeat_interleave(width)  # (N,)
    x = torch.arange(width, device=values.device).repeat(height)  # (N,)
    pairs = weight.permute(2, 3, 0, 1)[
        y[None] - y[:, None] + middle[0], x[None] - x[:, None] + middle[1]
    ]  # (N, N, k, u)
    lambdas = torch.einsum("nmku,buvm->bkvn", pairs, values.flatten(3))
    return lambdas.unflatten(3, (height, width))  # (B, k, v, H, W)


class PlainLambdaLayer(Plain):
    """A lambda layer as in the public implementations, with `way` for the position lambdas."""

    def __init__(self, layer: LambdaLayer, way: Callable[[Tensor, Tensor], Tensor]):
        super().__init__(layer)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        q, k, v = layer.qkv(x).split(layer.channels, dim=1)
        q = layer.norm_q(q).unflatten(1, (layer.num_heads, -1))  # (B, h, k, H, W)
        v = layer.norm_v(v).unflatten(1, (layer.intra_depth, -1))  # (B, u, v, H, W)
        k = k.unflatten(1, (layer.intra_depth, -1)).flatten(3)  # (B, u, k, M)
        content = torch.einsum("bukm,buvm->bkv", k.softmax(dim=3), v.flatten(3))
        y = torch.einsum("bhkyx,bkv->bhvyx", q, content)
        lambdas = self.way(v, layer.embeddings.weight)  # (B, k, v, H, W)
        if layer.embeddings.bias is not None:
            lambdas = lambdas + layer.embeddings.bias[:, None, None, None]
        y = y + torch.einsum("bhkyx,bkvyx->bhvyx", q, lambdas)
        return layer.pool(y.flatten(1, 2))
