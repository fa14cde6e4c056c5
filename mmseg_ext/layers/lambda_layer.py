"""Lambda layer: long-range interactions by linear maps made from the context, without attention.

Paper: "LambdaNetworks: Modeling Long-Range Interactions Without Attention", Irwan Bello, 2021,
arXiv 2102.08602. There is no code of its authors; followed are lucidrains/lambda-networks
(intra-depth, global context) and d-li14/lambda.pytorch (strided layer), which agree with timm's.

Deviations: the position lambdas are one correlation of the values with the embeddings, so no table
over pairs of positions is built in the global form either; average pooling rounds odd sizes up, so
that a strided layer always meets a strided 1x1 convolution.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers import _fourier_lambdas as fourier
from mmseg_ext.layers.precision import autocast_disabled, full_precision
from mmseg_ext.layers.shapes import is_fixed, require_map

PositionLambdas = Callable[[Tensor, Tensor, int], Iterator[Tensor]]


class PositionEmbeddings(nn.Module):
    """Relative position embeddings E (k, u, R, S), and the bias (k) that public weights carry.

    The paper has no bias; lucidrains, d-li14 and timm have one, the bias of their convolution.
    """

    def __init__(self, key_depth: int, intra_depth: int, size: tuple[int, int], bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(key_depth, intra_depth, *size))
        self.bias = nn.Parameter(torch.empty(key_depth)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embeddings from N(0, 1/k), as the paper states; bias zero."""
        nn.init.normal_(self.weight, std=self.weight.shape[0] ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class LambdaLayer(nn.Module):
    """Content and position lambdas applied to multi-queries (the paper's equations 1 to 3).

    With Q = x W_Q (h heads of k), K = c W_K (k x u) and V = c W_V (v x u, v = out_channels / h),
    batch norm on Q and V, and K~ the softmax of K over the context's positions m:
    `lambda_n = sum_m (K~_m + E_{m-n}) V_m^T` and `y_n = lambda_n^T q_n` for each head, heads
    joined.

    Local context (a lambda convolution) with `receptive_field`, global context with
    `receptive_field=None` and `resolution` (H, W), the largest map that the embeddings cover;
    smaller maps use the offsets they have.

    `content=False` and `position=False` leave one kind of lambda out. `embeddings` are another
    layer's `position` to share: they stay that layer's parameters. `stride` 2 averages the result
    over 3x3 (`pool='avg3'`, d-li14's and the paper's) or 2x2 windows (`'avg2'`, timm's).
    `norm_layer` builds the norms of queries and values from their number of channels.
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
        content: bool = True,
        position: bool = True,
        embeddings: PositionEmbeddings | None = None,
        norm_layer: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ):
        super().__init__()
        out_channels = in_channels if out_channels is None else out_channels
        if out_channels % num_heads:
            raise ValueError(
                f"out_channels must be divisible by num_heads, not {out_channels} by {num_heads}"
            )
        if pool not in ("avg3", "avg2"):
            raise ValueError(f"pool must be 'avg3' or 'avg2', not {pool!r}")
        self.num_heads = num_heads
        self.key_depth = key_depth
        self.intra_depth = intra_depth
        self.value_depth = out_channels // num_heads
        self.receptive_field = receptive_field
        self.resolution = resolution
        self.dilation = dilation
        self.content = content
        table = self._table_size()

        self.channels = (
            num_heads * key_depth,
            key_depth * intra_depth if content else 0,
            self.value_depth * intra_depth,
        )
        self.qkv = nn.Conv2d(in_channels, sum(self.channels), 1, bias=False)
        self.norm_q = norm_layer(self.channels[0])
        self.norm_v = norm_layer(self.channels[2])
        self.position = None
        self._borrowed: tuple[PositionEmbeddings, ...] = ()  # a tuple: not registered twice
        if position and embeddings is not None:
            expected = (key_depth, intra_depth, *table)
            if tuple(embeddings.weight.shape) != expected:
                shape = tuple(embeddings.weight.shape)
                raise ValueError(f"embeddings must be {expected} (k, u, R, S), not {shape}")
            self._borrowed = (embeddings,)
        elif position:
            self.position = PositionEmbeddings(key_depth, intra_depth, table, position_bias)
        if stride == 1:
            self.pool = nn.Identity()
        elif pool == "avg3":
            self.pool = nn.AvgPool2d(3, stride, padding=1)
        else:
            self.pool = nn.AvgPool2d(2, stride, ceil_mode=True)
        self.reset_parameters()

    def forward(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """x (B, C, H, W) to (B, out_channels, H', W'), H' = ceil(H / stride).

        `context` (B, C, M, N) gives keys and values in place of x; with position lambdas it must
        have x's size. `mask` (B, M, N) is True where the context may be used; elsewhere keys get no
        weight and values count zero (batch norm's statistics in training still see them).

        Raises:
            ValueError: for an x, context or mask of the wrong shape, or x larger than `resolution`.
        """
        return self._forward(x, context, mask, position_lambdas)

    def published_order(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """What `forward` computes, with one convolution of all embeddings at every size."""
        return self._forward(x, context, mask, direct_lambdas)

    def _forward(
        self, x: Tensor, context: Tensor | None, mask: Tensor | None, way: PositionLambdas
    ) -> Tensor:
        self._check_shapes(x, x if context is None else context, mask)
        queries, keys, values = self._project(x, context)
        queries = self.norm_q(queries).unflatten(1, (self.num_heads, -1))  # (B, h, k, H, W)
        values = self.norm_v(values).unflatten(1, (self.intra_depth, -1))  # (B, u, v, M, N)
        if mask is not None:
            mask = mask.bool()
            values = values * mask[:, None, None]
        dtype = queries.dtype
        queries = queries.to(full_precision(dtype))  # under autocast only convolutions are in half
        y = None
        if self.embeddings is not None:
            first = 0
            for lambdas in way(values, self.embeddings.weight, self.dilation):
                last = first + lambdas.shape[1]
                y = apply_lambdas(queries[:, :, first:last], lambdas.to(queries.dtype), y)
                first = last
        with autocast_disabled(x):
            shared = self._shared_lambda(keys, values.to(queries.dtype), mask)  # (B, k, v)
            if shared is not None:
                content = apply_shared_lambda(queries, shared)
                y = content if y is None else y + content
        assert y is not None  # of position, content or both
        return self.pool(y.flatten(1, 2).to(dtype))  # (B, h v, H', W')

    def attention_map(self, x: Tensor, position: tuple[int, int] | None = None) -> Tensor:
        """The weights of the values for x (B, C, H, W): (B, h, u, N, N) of N = H W positions.

        A lambda is linear in the values, so y_n is the sum over m of `q_n . (K~_m + E_{m-n})`
        times V_m, plus what the embeddings' bias adds; weights may be negative. Positions are in
        raster order, queries before keys. With `position` (row, column) there is this query alone,
        (B, h, u, 1, N). Of a strided layer these are the weights before pooling.
        """
        self._check_shapes(x, x, None)
        size = x.shape[2:]
        queries, keys, _ = self._project(x, None)
        queries = self.norm_q(queries).unflatten(1, (self.num_heads, -1))  # (B, h, k, H, W)
        if position is not None:
            queries = queries[..., position[0], position[1], None, None]  # (B, h, k, 1, 1)
        weights = queries.new_zeros(())
        if self.content:
            keys = keys.flatten(2).softmax(2).unflatten(1, (self.intra_depth, -1))  # (B, u, k, M)
            weights = torch.einsum("bhkyx,bukm->bhuyxm", queries, keys).unflatten(-1, size)
        if self.embeddings is not None:
            kernel = torch.einsum("bhkyx,kurs->bhuyxrs", queries, self.embeddings.weight)
            for axis, taps in enumerate(self.embeddings.weight.shape[2:]):
                here = torch.arange(size[axis], device=x.device)
                start = here if position is None else here[position[axis], None]
                offset = self.dilation * (torch.arange(taps, device=x.device) - taps // 2)
                hit = start[:, None, None] + offset[:, None] == here  # (queries, taps, keys)
                way = ("bhuyxrs,yrm->bhuyxms", "bhuyxms,xsn->bhuyxmn")[axis]
                kernel = torch.einsum(way, kernel, hit.to(kernel.dtype))
            weights = weights + kernel
        return weights.flatten(5).flatten(3, 4)  # (B, h, u, N, N)

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, ...]:
        """Queries of x, keys and values of the context."""
        queries, keys, values = self.qkv(x).split(self.channels, dim=1)
        if context is not None:
            _, keys, values = self.qkv(context).split(self.channels, dim=1)
        return queries, keys, values

    def _shared_lambda(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor | None:
        """What all positions share: the content lambda and the embeddings' bias, (B, k, v).

        Takes keys (B, k u, M, N) and values (B, u, v, M, N).
        """
        shared = None
        if self.content:
            keys = keys.unflatten(1, (self.intra_depth, -1)).flatten(3)  # (B, u, k, M)
            keys = keys.to(values.dtype)
            if mask is None:
                keys = keys.softmax(dim=3)
            else:
                used = mask.flatten(1)[:, None, None]  # (B, 1, 1, M)
                keys = keys.masked_fill(~used, torch.finfo(keys.dtype).min).softmax(dim=3) * used
            # In this order the values' gradient has ordinary strides: for one image in others the
            # backward of torch's batch norm is wrong on a CPU (2.13).
            shared = values.flatten(3) @ keys.transpose(2, 3)  # (B, u, v, k)
            shared = shared.sum(1).transpose(1, 2)
        if self.embeddings is not None and self.embeddings.bias is not None:
            bias = self.embeddings.bias.to(values.dtype)[None, :, None]
            bias = bias.expand(values.shape[0], -1, self.value_depth)  # (B, k, v)
            shared = bias if shared is None else shared + bias
        return shared

    def _check_shapes(self, x: Tensor, context: Tensor, mask: Tensor | None) -> None:
        require_map(x, self.qkv.in_channels)
        require_map(context, self.qkv.in_channels, "context")
        size, others = tuple(x.shape[2:]), tuple(context.shape[2:])
        wanted = (x.shape[0], *others)
        if mask is not None and mask.shape != wanted:
            given = tuple(mask.shape)
            raise ValueError(f"mask must be (B, H, W) of the context, {wanted}, not {given}")
        if self.embeddings is None:
            return
        if size != others:
            raise ValueError(
                f"with position lambdas, context must be of x's size {size}, not {others}"
            )
        if self.resolution is not None and any(
            a > b for a, b in zip(size, self.resolution, strict=True)
        ):
            raise ValueError(f"x of size {size} is larger than resolution {self.resolution}")

    def reset_parameters(self) -> None:
        """The paper's: queries from N(0, 1/(d k)), keys and values from N(0, 1/d)."""
        in_channels = self.qkv.in_channels
        queries = self.channels[0]
        nn.init.normal_(self.qkv.weight[:queries], std=(in_channels * self.key_depth) ** -0.5)
        nn.init.normal_(self.qkv.weight[queries:], std=in_channels**-0.5)
        if self.position is not None:
            self.position.reset_parameters()

    @property
    def embeddings(self) -> PositionEmbeddings | None:
        """The layer's own embeddings or those that it shares; None without position lambdas."""
        return self._borrowed[0] if self._borrowed else self.position

    def _table_size(self) -> tuple[int, int]:
        if self.resolution is not None and self.receptive_field is None:
            if not isinstance(self.resolution, Sequence) or min(self.resolution) < 1:
                raise ValueError(f"resolution must be a positive (H, W), not {self.resolution!r}")
            if self.dilation != 1:
                raise ValueError(f"dilation must be 1 with a resolution, not {self.dilation}")
            return 2 * self.resolution[0] - 1, 2 * self.resolution[1] - 1
        if self.receptive_field is None or self.resolution is not None:
            raise ValueError(
                "give either receptive_field (local context) or resolution (global context, with "
                f"receptive_field=None), not receptive_field={self.receptive_field} and "
                f"resolution={self.resolution}"
            )
        if self.receptive_field % 2 == 0:
            raise ValueError(f"receptive_field must be odd, not {self.receptive_field}")
        return self.receptive_field, self.receptive_field


def position_lambdas(values: Tensor, weight: Tensor, dilation: int = 1) -> Iterator[Tensor]:
    """lambda^p_n = sum over u and m of E[m - n] V[m]^T, a chunk of key channels at a time.

    `values` is (B, u, v, H, W); `weight` holds the embeddings (k, u, R, S), R and S odd, indexed by
    offset (context minus query, its middle is no offset). Positions outside the map count nothing.
    The chunks (B, k', v, H, W) together hold all k channels in order.
    """
    weight = crop_embeddings(weight, *values.shape[3:], dilation=dilation)
    way = fourier.fourier_lambdas if fourier.should_use(values, weight) else direct_lambdas
    return way(values, weight, dilation)


def direct_lambdas(values: Tensor, weight: Tensor, dilation: int = 1) -> Iterator[Tensor]:
    """The lambdas in one chunk: a 2-D convolution with v in the batch."""
    batch, _, depth, height, width = values.shape
    padding = [dilation * (n // 2) for n in weight.shape[2:]]
    folded = values.transpose(1, 2).flatten(0, 1)  # (B v, u, H, W)
    lambdas = F.conv2d(folded, weight, padding=padding, dilation=dilation)
    yield lambdas.view(batch, depth, -1, height, width).transpose(1, 2)  # (B, k, v, H, W)


def crop_embeddings(weight: Tensor, height: int, width: int, dilation: int = 1) -> Tensor:
    """The offsets that two positions of an H x W map can have, of (k, u, R, S) embeddings."""
    if not is_fixed(height, width):
        return weight  # a program for any size: the offsets too many meet zero padding
    cut = []
    for taps, size in zip(weight.shape[2:], (height, width), strict=True):
        reach = min(taps // 2, (size - 1) // dilation)
        cut.append(slice(taps // 2 - reach, taps // 2 + reach + 1))
    return weight[:, :, cut[0], cut[1]]


def apply_lambdas(queries: Tensor, lambdas: Tensor, y: Tensor | None = None) -> Tensor:
    """y_n = lambda_n^T q_n: a lambda for each position, (B, k, v, H, W), shared by all heads.

    `queries` is (B, h, k, H, W). Returns (B, h, v, H, W), added in place to `y` where given.
    """
    # One pass per key channel: k is small, and the products never exist as a (B, h, k, v, H, W).
    # In place, because sixteen new maps per layer would break up the allocator's memory.
    for i in range(lambdas.shape[1]):
        q, lam = queries[:, :, i, None], lambdas[:, None, i]  # (B, h, 1, H, W), (B, 1, v, H, W)
        y = q * lam if y is None else y.addcmul_(q, lam)
    return y  # pyright: ignore[reportReturnType] (there is a key)


def apply_shared_lambda(queries: Tensor, lambdas: Tensor) -> Tensor:
    """y_n = lambda^T q_n: one lambda (B, k, v) for all positions and heads.

    `queries` is (B, h, k, H, W). Returns (B, h, v, H, W).
    """
    transposed = lambdas.transpose(1, 2).unsqueeze(1)  # (B, 1, v, k)
    y = transposed @ queries.flatten(3)  # (B, h, v, N)
    return y.unflatten(3, queries.shape[3:])  # (B, h, v, H, W)
