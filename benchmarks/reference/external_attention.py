"""External attention by the equations of arXiv 2105.02358, one after the other."""

import torch
from torch import Tensor

from benchmarks.reference import Plain


def double_normalized(logits: Tensor) -> Tensor:
    """Apply equations 10 and 11 to logits (..., N, S), with the published code's epsilon."""
    shares = torch.softmax(logits, dim=-2)  # over the N positions
    return shares / (1e-9 + shares.sum(dim=-1, keepdim=True))


class PlainExternalAttention2d(Plain):
    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        pixels = x.flatten(2).transpose(1, 2)  # (B, N, C)
        queries = pixels @ layer.conv1.weight[:, :, 0, 0].T + layer.conv1.bias
        keys = layer.linear_0.weight[:, :, 0]  # (S, C)
        logits = queries @ keys.T  # (B, N, S)
        if layer.normalization == "double":
            attention = double_normalized(logits)
        else:
            attention = torch.softmax(logits, dim=-1)
        values = keys if layer.tied else layer.linear_1.weight[:, :, 0].T  # (S, C)
        y = attention @ values @ layer.conv2[0].weight[:, :, 0, 0].T  # (B, N, C)
        # On a CPU, batch norm gives wrong gradients for one transposed map (torch 2.13).
        y = y.transpose(1, 2).contiguous().view(x.shape)  # (B, C, H, W)
        return torch.relu(x + layer.conv2[1](y))


class PlainExternalAttention(Plain):
    def forward(self, x: Tensor) -> Tensor:
        shares = torch.softmax(x @ self.layer.mk.weight.T, dim=-2)  # (B, N, S)
        return shares / shares.sum(dim=-1, keepdim=True) @ self.layer.mv.weight.T


class PlainMultiHeadExternalAttention(Plain):
    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        wide = x @ layer.trans_dims.weight.T + layer.trans_dims.bias  # (B, N, G C / heads)
        heads = []
        for queries in wide.chunk(layer.groups, dim=-1):  # each (B, N, C / heads)
            attention = double_normalized(queries @ layer.linear_0.weight.T + layer.linear_0.bias)
            heads.append(attention @ layer.linear_1.weight.T + layer.linear_1.bias)
        return torch.cat(heads, -1) @ layer.proj.weight.T + layer.proj.bias
