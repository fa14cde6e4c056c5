"""EAT (PCT with external attention), and PCT for comparison.

Papers: Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks,
arXiv:2105.02358, tables 6 and 7; PCT: Point Cloud Transformer, arXiv:2012.09688.
Published code: MenghaoGuo/PCT (Jittor), `networks/seg/pct_partseg.py`, and its reimplementation
Strawberry-Eat-Mango/PCT_Pytorch, `model.py`. There is no published code of EAT.

Deviations: none in the results with `attention="self"`; tests compare the classifier with
PCT_Pytorch's `Pct` and the segmenter with PCT's `Point_Transformer_partseg`. Tensors are channels
last (B, N, C), and 1x1 convolutions are linear layers. Local aggregation applies its first linear
layer before it gathers neighbors. The segmenter computes what is equal for all points only once.

Our choices for external attention, which the paper does not define: each layer attends to two
memories of 64 slots (`mmseg_ext.layers.ExternalAttention`) with its own channels. PCT's offset form
stays: x - attended, linear, batch norm, ReLU, plus x.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers import ExternalAttention
from projects.eat.sampling import farthest_points, nearest_points, take

Attention = Literal["external", "self"]


def _batch_norm(norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
    """Apply batch norm to the channels of x (..., C)."""
    return norm(x.flatten(0, -2)).view_as(x)


class Layer(nn.Module):
    """Linear, batch norm and leaky ReLU: (..., C) to (..., C')."""

    def __init__(self, wide: int, out: int, bias: bool = False, slope: float = 0.0):
        super().__init__()
        self.linear = nn.Linear(wide, out, bias=bias)
        self.norm = nn.BatchNorm1d(out)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(_batch_norm(self.norm, self.linear(x)), self.slope)


class SelfAttention(nn.Module):
    """PCT's self-attention, with one linear map for queries and keys.

    As in the published code, the softmax is over the keys, and the L1 normalization and the sum of
    the values are over the queries.
    """

    def __init__(self, channels: int):
        super().__init__()
        self.keys = nn.Linear(channels, channels // 4, bias=False)
        self.values = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, N, C) to (B, N, C)."""
        keys = self.keys(x)  # B, N, C/4
        attention = torch.bmm(keys, keys.transpose(1, 2)).softmax(2)  # B, N, N
        attention = attention / (1e-9 + attention.sum(1, keepdim=True))
        return torch.bmm(attention.transpose(1, 2), self.values(x))


ATTENTION = {"external": ExternalAttention, "self": SelfAttention}


class OffsetAttention(nn.Module):
    """x + ReLU(norm(linear(x - attended)))."""

    def __init__(self, channels: int, attention: Attention):
        super().__init__()
        self.attention = ATTENTION[attention](channels)
        self.offset = Layer(channels, channels, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset(x - self.attention(x))


def _attend(layers: nn.ModuleList, x: Tensor) -> list[Tensor]:
    """Apply the layers one after the other, and return the output of each."""
    outputs = []
    for layer in layers:
        x = layer(x)
        outputs.append(x)
    return outputs


class LocalAggregation(nn.Module):
    """Two layers on (difference to the point, point) of the neighbors, then their maximum."""

    def __init__(self, channels: int):
        super().__init__()
        self.layer1 = Layer(channels, channels)
        self.layer2 = Layer(channels, channels)

    def forward(self, features: Tensor, sampled: Tensor, neighbours: Tensor) -> Tensor:
        """Map features (B, N, C/2), sampled (B, M), neighbours (B, M, K) to (B, M, C)."""
        first = self.layer1
        of_difference, of_point = first.linear.weight.chunk(2, dim=1)  # C, C/2
        # W_d (f_j - f_i) + W_p f_i = W_d f_j + (W_p - W_d) f_i: N + M products, not M K of twice
        # the width.
        gathered = take(F.linear(features, of_difference), neighbours)  # B, M, K, C
        own = F.linear(take(features, sampled), of_point - of_difference)  # B, M, C
        x = F.relu(_batch_norm(first.norm, gathered + own[:, :, None]))
        return self.layer2(x).amax(2)


class Classifier(nn.Module):
    """A network from point clouds to classes. Published PCT: width 64, 256 attention channels.

    Args:
        samples: number of points after the first and the second aggregation.
        neighbours: number of points that each of them aggregates.
    """

    def __init__(
        self,
        num_classes: int = 40,
        attention: Attention = "external",
        width: int = 64,
        samples: tuple[int, int] = (512, 256),
        neighbours: int = 32,
        dropout: float = 0.5,
    ):
        super().__init__()
        self.samples = samples
        self.neighbours = neighbours
        self.embedding = nn.Sequential(Layer(3, width), Layer(width, width))
        self.aggregations = nn.ModuleList(LocalAggregation(width * n) for n in (2, 4))
        wide = 4 * width
        self.before = nn.Sequential(Layer(wide, wide), Layer(wide, wide))
        self.attentions = nn.ModuleList(OffsetAttention(wide, attention) for _ in range(4))
        self.fuse = Layer(5 * wide, 4 * wide, slope=0.2)
        self.head = nn.Sequential(
            Layer(4 * wide, 2 * wide, slope=0.2),
            nn.Dropout(dropout),
            Layer(2 * wide, wide, bias=True, slope=0.2),
            nn.Dropout(dropout),
            nn.Linear(wide, num_classes),
        )

    def forward(self, points: Tensor) -> Tensor:
        """Map points (B, N, 3) to logits (B, classes)."""
        features = self.embedding(points)  # B, N, C
        for aggregation, count in zip(self.aggregations, self.samples, strict=True):
            sampled = farthest_points(points, count)
            centres = take(points, sampled)
            neighbours = nearest_points(points, centres, self.neighbours)
            features, points = aggregation(features, sampled, neighbours), centres
        attended = self.attended(features)  # B, M, 4C
        return self.head(self.fuse(torch.cat([attended, features], 2)).amax(1))

    def attended(self, features: Tensor) -> Tensor:
        """Return the concatenated outputs (B, M, 4C) of the attention layers."""
        return torch.cat(_attend(self.attentions, self.before(features)), 2)


class PartSegmenter(nn.Module):
    """A network from point clouds with their class to parts. Published PCT: width 128."""

    def __init__(
        self,
        num_parts: int = 50,
        num_classes: int = 16,
        attention: Attention = "external",
        width: int = 128,
        dropout: float = 0.5,
    ):
        super().__init__()
        self.num_classes = num_classes
        wide = 8 * width
        self.embedding = nn.Sequential(Layer(3, width), Layer(width, width))
        self.attentions = nn.ModuleList(OffsetAttention(width, attention) for _ in range(4))
        self.fuse = Layer(4 * width, wide, slope=0.2)
        self.of_class = Layer(num_classes, width // 2, slope=0.2)
        self.head1 = Layer(3 * wide + width // 2, 4 * width, bias=True)
        self.dropout = nn.Dropout(dropout)
        self.head2 = Layer(4 * width, 2 * width, bias=True)
        self.head3 = nn.Linear(2 * width, num_parts)

    def forward(self, points: Tensor, label: Tensor) -> Tensor:
        """Map points (B, N, 3) and label (B,) to logits (B, N, parts)."""
        x = self.fuse(torch.cat(_attend(self.attentions, self.embedding(points)), 2))  # B, N, 8C
        of_class = self.of_class(F.one_hot(label, self.num_classes).to(x.dtype))  # B, C/2
        shared = torch.cat([x.amax(1), x.mean(1), of_class], 1)  # B, 16C + C/2
        first = self.head1
        per_point, of_shared = first.linear.weight.split([x.shape[2], shared.shape[1]], dim=1)
        of_cloud = F.linear(shared, of_shared, first.linear.bias)  # B, 4C
        x = F.linear(x, per_point) + of_cloud[:, None]  # B, N, 4C
        x = F.relu(_batch_norm(first.norm, x))
        return self.head3(self.head2(self.dropout(x)))
