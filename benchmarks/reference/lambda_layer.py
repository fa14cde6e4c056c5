"""Plain ways to compute position lambdas (arXiv 2102.08602), for measurements and tests.

Every way takes values (B, u, v, H, W) and embeddings (k, u, R, S), indexed by the offset of the
context from the query, and returns position lambdas (B, k, v, H, W).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers.lambda_layer import LambdaLayer, apply_lambdas

Way = Callable[[Tensor, Tensor], Tensor]


def conv3d(values: Tensor, weight: Tensor) -> Tensor:
    """Convolve over (v, H, W) with a kernel 1 x R x S, as the public implementations do."""
    padding = (0, weight.shape[2] // 2, weight.shape[3] // 2)
    return F.conv3d(values, weight.unsqueeze(2), padding=padding)


def folded_conv2d(values: Tensor, weight: Tensor) -> Tensor:
    """Convolve over (H, W) with v in the batch."""
    batch, _, depth, height, width = values.shape
    padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    lambdas = F.conv2d(values.transpose(1, 2).flatten(0, 1), weight, padding=padding)
    return lambdas.view(batch, depth, -1, height, width).transpose(1, 2)  # (B, k, v, H, W)


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


class PlainLambdaLayer(nn.Module):
    """A lambda layer by its equations, with `way` for the position lambdas.

    It shares the parameters of `layer`. With `einsum` it applies lambdas as the public
    implementations do. Without it applies them as our layer does, so only `way` differs.
    """

    def __init__(self, layer: LambdaLayer, way: Way, einsum: bool = True):
        super().__init__()
        self.layer = layer
        self.way = way
        self.einsum = einsum

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
        if self.einsum:
            y = y + torch.einsum("bhkyx,bkvyx->bhvyx", q, lambdas)
        else:
            y = y + apply_lambdas(q, lambdas)
        return layer.pool(y.flatten(1, 2))
