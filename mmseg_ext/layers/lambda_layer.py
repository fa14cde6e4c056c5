"""Lambda layer: long-range interactions through linear maps, without attention maps.

Paper: "LambdaNetworks: Modeling Long-Range Interactions Without Attention", Irwan Bello, 2021,
arXiv 2102.08602. The author published no code. This layer follows lucidrains/lambda-networks
(intra-depth, global context) and d-li14/lambda.pytorch (strided layer), which agree with timm.

Deviations: position lambdas are one correlation of the values with the embeddings, so the global
form has no table over pairs of positions. Average pooling rounds odd sizes up, so the output has
the size of a strided 1x1 convolution's output.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers import _fourier_lambdas as fourier
from mmseg_ext.layers.input_shapes import require_map
from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.programs import is_fixed


class PositionEmbeddings(nn.Module):
    """Relative position embeddings E (k, u, R, S), and the bias (k) that public weights have."""

    def __init__(self, key_depth: int, intra_depth: int, size: tuple[int, int], bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(key_depth, intra_depth, *size))
        self.bias = nn.Parameter(torch.empty(key_depth)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings from N(0, 1/k), as in the paper; set the bias to zero."""
        nn.init.normal_(self.weight, std=self.weight.shape[0] ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class LambdaLayer(nn.Module):
    """Content and position lambdas applied to multi-queries (the paper's equations 1 to 3).

    With Q = x W_Q (h heads of k), K = x W_K (k x u) and V = x W_V (v x u, v = out_channels / h),
    batch norm on Q and V, and K~ the softmax of K over the positions m:
    `lambda_n = sum_m (K~_m + E_{m-n}) V_m^T` and `y_n = lambda_n^T q_n` for each head; the heads
    are concatenated.

    Args:
        key_depth: k.
        num_heads: h, the number of queries that share a lambda.
        intra_depth: u.
        receptive_field: odd size of the window of position lambdas (local context), or None.
        resolution: with `receptive_field=None`, the size (H, W) of the largest map (global
            context). Smaller maps use the offsets that they have.
        stride: 1 or 2; the result is averaged over windows.
        dilation: distance between the positions in the window.
        position_bias: give the embeddings a bias, as in public weights.
        pool: windows of a strided layer: 'avg3' is 3x3 (the paper, d-li14), 'avg2' is 2x2 (timm).
        embeddings: the `position` of another layer to share. It remains a submodule of that layer.
        norm_layer: builds the norms of queries and values from their number of channels.

    Raises:
        ValueError: if an argument is invalid, and in `forward` if the input is not
            (B, in_channels, H, W) or is larger than `resolution`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        key_depth: int = 16,
        num_heads: int = 4,
        intra_depth: int = 1,
        receptive_field: int | None = 23,
        resolution: tuple[int, int] | None = None,
        stride: int = 1,
        dilation: int = 1,
        position_bias: bool = False,
        pool: Literal["avg3", "avg2"] = "avg3",
        embeddings: PositionEmbeddings | None = None,
        norm_layer: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ):
        super().__init__()
        out_channels = out_channels or in_channels
        if out_channels % num_heads:
            raise ValueError(f"out_channels={out_channels} must be a multiple of {num_heads} heads")
        if pool not in ("avg3", "avg2"):
            raise ValueError(f"pool must be 'avg3' or 'avg2', not {pool!r}")
        self.num_heads, self.value_depth = num_heads, out_channels // num_heads
        self.key_depth, self.intra_depth = key_depth, intra_depth
        self.receptive_field, self.resolution = receptive_field, resolution
        self.dilation = dilation
        table = self._table_size()

        self.channels = (  # of queries, keys and values
            num_heads * key_depth,
            key_depth * intra_depth,
            self.value_depth * intra_depth,
        )
        self.qkv = nn.Conv2d(in_channels, sum(self.channels), 1, bias=False)
        self.norm_q = norm_layer(self.channels[0])
        self.norm_v = norm_layer(self.channels[2])
        self.position = None
        # A tuple, because a module as attribute would be registered a second time.
        self._borrowed: tuple[PositionEmbeddings, ...] = ()
        if embeddings is None:
            self.position = PositionEmbeddings(key_depth, intra_depth, table, position_bias)
        else:
            self._borrowed = (embeddings,)
        self.pool = nn.Identity()
        if stride > 1 and pool == "avg3":
            self.pool = nn.AvgPool2d(3, stride, padding=1)
        elif stride > 1:
            self.pool = nn.AvgPool2d(2, stride, ceil_mode=True)
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, C, H, W) to (B, out_channels, ceil(H / stride), ceil(W / stride)).

        The output has the memory format of x.
        """
        return self._forward(x, position_lambdas)

    def published_order(self, x: Tensor) -> Tensor:
        """Compute `forward` with one convolution by all embeddings, for any size."""
        return self._forward(x, direct_lambdas)

    def _forward(self, x: Tensor, compute_lambdas: Callable[..., Iterator[Tensor]]) -> Tensor:
        queries, keys, values = self._project(x)
        values = self.norm_v(values).unflatten(1, (self.intra_depth, -1))  # (B, u, v, H, W)
        chunks = compute_lambdas(values, self.embeddings.weight, self.dilation)
        dtype = queries.dtype
        if x.device.type != "cpu":
            apply = apply_by_positions  # starts a fifth of the operators
        else:
            apply = apply_by_channels
            # Under autocast only convolutions run in half precision.
            queries, values = queries.to(full_precision(dtype)), values.to(full_precision(dtype))
        with autocast_disabled(x):
            shared = self._shared_lambda(keys, values)
        y = apply(queries, chunks, shared).flatten(1, 2)  # (B, h v, H, W)
        y = self.pool(y.to(dtype))  # (B, h v, H', W')
        if x.stride(1) == 1 and not x.is_contiguous():
            return y.contiguous(memory_format=torch.channels_last)
        return y.contiguous()

    def attention_map(self, x: Tensor, position: tuple[int, int] | None = None) -> Tensor:
        """Return the weights of the values for x (B, C, H, W), (B, h, u, N, N) with N = H W.

        A lambda is linear in the values: y_n is the sum over m of `q_n . (K~_m + E_{m-n})` times
        V_m, plus the contribution of the embeddings' bias. The weights can be negative. Positions
        are in raster order, queries before keys. `position` (row, column) selects one query and
        gives (B, h, u, 1, N). For a strided layer these are the weights before pooling.
        """
        queries, keys, _ = self._project(x)
        height, width = x.shape[2:]
        rows = torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device)
        if position is not None:
            rows, columns = rows[position[0], None], columns[position[1], None]  # (1,)
            queries = queries[..., position[0], position[1], None, None]  # (B, h, k, 1, 1)
        keys = keys.flatten(2).softmax(2).unflatten(1, (self.intra_depth, -1))  # (B, u, k, M)
        content = torch.einsum("bhkyx,bukm->bhuyxm", queries, keys)
        content = content.unflatten(-1, (height, width))  # (B, h, u, y, x, H, W)
        weights = torch.einsum("bhkyx,kurs->bhuyxrs", queries, self.embeddings.weight)
        # Move the weight of each tap (r, s) to the position (m, n) that it falls on.
        taps_down, taps_across = self.embeddings.weight.shape[2:]
        down = self._hits(rows, taps_down, height).to(weights.dtype)
        across = self._hits(columns, taps_across, width).to(weights.dtype)
        weights = torch.einsum("bhuyxrs,yrm->bhuyxms", weights, down)
        weights = torch.einsum("bhuyxms,xsn->bhuyxmn", weights, across)
        return (content + weights).flatten(5).flatten(3, 4)  # (B, h, u, N, N)

    def _hits(self, queries: Tensor, taps: int, size: int) -> Tensor:
        """Return whether each tap of a query on one axis falls on each key, (q, taps, size)."""
        offset = self.dilation * (torch.arange(taps, device=queries.device) - taps // 2)
        keys = torch.arange(size, device=queries.device)
        return queries[:, None, None] + offset[:, None] == keys

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalized queries (B, h, k, H, W), and keys and values as projected."""
        require_map(x, self.qkv.in_channels)
        size, largest = tuple(x.shape[2:]), self.resolution
        if largest is not None and (size[0] > largest[0] or size[1] > largest[1]):
            raise ValueError(f"x of size {size} is larger than resolution {largest}")
        queries, keys, values = self.qkv(x).split(self.channels, dim=1)
        return self.norm_q(queries).unflatten(1, (self.num_heads, -1)), keys, values

    def _shared_lambda(self, keys: Tensor, values: Tensor) -> Tensor:
        """Return the content lambda plus the embeddings' bias (B, k, v), for all positions.

        `keys` are (B, k u, H, W), `values` (B, u, v, H, W).
        """
        keys = keys.unflatten(1, (self.intra_depth, -1)).flatten(3)  # (B, u, k, N)
        keys = keys.to(values.dtype).softmax(dim=3)
        # This order gives the values' gradient ordinary strides. With other strides the backward
        # pass of batch norm for one image is wrong on a CPU (torch 2.13).
        shared = values.flatten(3) @ keys.transpose(2, 3)  # (B, u, v, k)
        if self.intra_depth == 1:
            shared = shared.squeeze(1)  # (B, v, k)
        else:
            shared = shared.sum(1)  # (B, v, k)
        shared = shared.transpose(1, 2)  # (B, k, v)
        if self.embeddings.bias is not None:
            shared = shared + self.embeddings.bias.to(values.dtype)[:, None]
        return shared

    def reset_parameters(self) -> None:
        """Initialize as in the paper: queries by N(0, 1/(d k)), keys and values by N(0, 1/d)."""
        in_channels, queries = self.qkv.in_channels, self.channels[0]
        nn.init.normal_(self.qkv.weight[:queries], std=(in_channels * self.key_depth) ** -0.5)
        nn.init.normal_(self.qkv.weight[queries:], std=in_channels**-0.5)
        if self.position is not None:
            self.position.reset_parameters()

    @property
    def embeddings(self) -> PositionEmbeddings:
        """The layer's own embeddings or those that it shares."""
        return self.position or self._borrowed[0]

    def _table_size(self) -> tuple[int, int]:
        """Return the size (R, S) of the embeddings."""
        field, largest = self.receptive_field, self.resolution
        if (field is None) == (largest is None):
            raise ValueError(
                f"receptive_field={field} and resolution={largest}: set the receptive field (local "
                "context) or the resolution (global context), and the other to None"
            )
        if largest is not None:
            if self.dilation != 1:
                raise ValueError(f"dilation must be 1 with a resolution, not {self.dilation}")
            return 2 * largest[0] - 1, 2 * largest[1] - 1
        assert field is not None
        if field % 2 == 0:
            raise ValueError(f"receptive_field must be odd, not {field}")
        return field, field


def position_lambdas(values: Tensor, weight: Tensor, dilation: int = 1) -> Iterator[Tensor]:
    """Yield chunks (B, k', v, H, W) of lambda^p_n = sum over u and m of E[m - n] V[m]^T.

    `values` are (B, u, v, H, W). `weight` are the embeddings (k, u, R, S), R and S odd, indexed by
    the offset of the context from the query; the offset in the middle is zero. Positions outside of
    the map do not contribute. The chunks contain all k channels in order.
    """
    weight = crop_embeddings(weight, *values.shape[3:], dilation=dilation)
    if fourier.should_use(values, weight):
        return fourier.fourier_lambdas(values, weight, dilation)
    return direct_lambdas(values, weight, dilation)


def direct_lambdas(values: Tensor, weight: Tensor, dilation: int = 1) -> Iterator[Tensor]:
    """Yield all lambdas in one chunk (B, k, v, H, W), by a 2-D convolution with v in the batch."""
    batch, _, depth = values.shape[:3]
    padding = [dilation * (n // 2) for n in weight.shape[2:]]
    folded = values.transpose(1, 2).flatten(0, 1)  # (B v, u, H, W)
    lambdas = F.conv2d(folded, weight, padding=padding, dilation=dilation)
    yield lambdas.unflatten(0, (batch, depth)).transpose(1, 2)  # (B, k, v, H, W)


def crop_embeddings(weight: Tensor, height: int, width: int, dilation: int = 1) -> Tensor:
    """Cut embeddings (k, u, R, S) to the offsets that exist in a map of height x width."""
    if not is_fixed(height, width):
        return weight  # a program for any size; the other offsets multiply zero padding
    cut = []
    for taps, size in zip(weight.shape[2:], (height, width), strict=True):
        reach = min(taps // 2, (size - 1) // dilation)
        cut.append(slice(taps // 2 - reach, taps // 2 + reach + 1))
    return weight[:, :, cut[0], cut[1]]


def apply_by_channels(queries: Tensor, chunks: Iterable[Tensor], shared: Tensor) -> Tensor:
    """Return y_n = lambda_n^T q_n (B, h, v, H, W) for the queries (B, h, k, H, W) of all heads.

    lambda_n is the sum of `shared` (B, k, v) and a position lambda. `chunks` (B, k', v, H, W) are
    the position lambdas of all k channels in order.
    """
    # One pass per key channel: k is small, and a (B, h, k, v, H, W) tensor would be large. In
    # place, because sixteen new maps per layer would fragment the memory. `unbind`, because the
    # gradient of each index would be a map of all channels, filled with zeros.
    channels = queries.unsqueeze(3).unbind(2)  # each (B, h, 1, H, W)
    y, used = None, 0
    for chunk in chunks:
        lambdas = chunk.to(queries.dtype).unsqueeze(1).unbind(2)  # each (B, 1, v, H, W)
        for lam in lambdas:
            y = channels[used] * lam if y is None else y.addcmul_(channels[used], lam)
            used += 1
    with autocast_disabled(queries):
        content = shared.transpose(1, 2).unsqueeze(1) @ queries.flatten(3)  # (B, h, v, N)
    assert y is not None
    return y + content.unflatten(3, queries.shape[3:])  # (B, h, v, H, W)


def apply_by_positions(queries: Tensor, chunks: Iterable[Tensor], shared: Tensor) -> Tensor:
    """Compute `apply_by_channels` for a GPU, which it keeps waiting less.

    The queries of all heads and the lambda of a position are small matrices. One operator
    multiplies them for all positions, instead of one for each key channel, and it runs in the dtype
    of autocast. On a CPU it is slower. `chunks` has one chunk, from `direct_lambdas`.
    """
    (position_part,) = chunks
    lambdas = position_part + shared[..., None, None]  # (B, k, v, H, W)
    batch, _, _, height, width = lambdas.shape
    left = queries.permute(0, 3, 4, 1, 2).flatten(0, 2)  # (B H W, h, k)
    right = lambdas.permute(0, 3, 4, 2, 1).flatten(0, 2)  # (B H W, v, k)
    y = left @ right.transpose(1, 2)  # (B H W, h, v)
    return y.unflatten(0, (batch, height, width)).permute(0, 3, 4, 1, 2)  # (B, h, v, H, W)
