"""The plain formulation of Manhattan attention and of RMT, for measurements and tests.

It evaluates the equations of arXiv:2309.11523 as the published code does. In each forward every
stage builds its decay masks (heads x L x L for full attention) and its rotary phases, and attention
stores its maps of probabilities. The modules share the parameters of ours.
"""

import torch
from torch import Tensor

from benchmarks.reference import Plain
from mmseg_ext.layers.input_shapes import channels_first, channels_last
from mmseg_ext.layers.manhattan_attention import ManhattanAttention, ManhattanBlock, log_decays


class Relations:
    """Masks and phases for one map size, built in each forward for each stage."""

    def __init__(self, layer: ManhattanAttention, height: int, width: int, like: Tensor):
        options = {"dtype": like.dtype, "device": like.device}
        gamma = log_decays(layer.num_heads, layer.decay_start, layer.decay_range).to(**options)
        h, w = torch.arange(height, **options), torch.arange(width, **options)
        if layer.decomposed:
            self.masks = tuple((t[:, None] - t).abs() * gamma[:, None, None] for t in (w, h))
        else:
            rows = h.repeat_interleave(width)  # (L,)
            columns = w.repeat(height)  # (L,)
            distance = (rows[:, None] - rows).abs() + (columns[:, None] - columns).abs()
            self.masks = (distance * gamma[:, None, None],)  # (n, L, L)
        dim = layer.embed_dim // layer.num_heads
        theta = 10000.0 ** -torch.linspace(0, 1, dim // 2, **options)
        angle = torch.arange(height * width, **options)[:, None] * theta.repeat_interleave(2)
        self.sin = angle.sin().view(height, width, dim)  # (H, W, d)
        self.cos = angle.cos().view(height, width, dim)  # (H, W, d)


def _rotate(x: Tensor, relations: Relations) -> Tensor:
    """Apply phases to x (B, n, H, W, d)."""
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)  # (B, n, H, W, d)
    return x * relations.cos + turned * relations.sin


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, decay: str) -> Tensor:
    if decay == "product":
        weights = torch.softmax(q @ k.transpose(-1, -2), -1) * mask.exp()
    else:
        weights = torch.softmax(q @ k.transpose(-1, -2) + mask, -1)
    return weights @ v


def plain_manhattan_attention(
    layer: ManhattanAttention, x: Tensor, relations: Relations | None = None
) -> Tensor:
    """Compute `layer(x)` by its equations, for a layer with rotary phases and a decay."""
    batch, height, width, _ = x.shape
    heads = layer.num_heads
    if relations is None:
        relations = Relations(layer, height, width, x)

    def split(t: Tensor) -> Tensor:
        return t.view(batch, height, width, heads, -1).permute(0, 3, 1, 2, 4)  # (B, n, H, W, d)

    value = layer.v_proj(x)
    q, k, v = split(layer.q_proj(x)), split(layer.k_proj(x)), split(value)
    k = k * k.shape[-1] ** -0.5
    q, k = _rotate(q, relations), _rotate(k, relations)
    if layer.decomposed:
        mask_w, mask_h = relations.masks
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # (B, H, n, W, d)
        v = _softmax_attention(q, k, v, mask_w, layer.decay)
        q, k, v = (t.transpose(1, 3) for t in (q, k, v))  # (B, W, n, H, d)
        out = _softmax_attention(q, k, v, mask_h, layer.decay).permute(0, 3, 1, 2, 4)
    else:
        q, k, v = (t.flatten(2, 3) for t in (q, k, v))  # (B, n, L, d)
        out = _softmax_attention(q, k, v, relations.masks[0], layer.decay).transpose(1, 2)
    out = out.reshape(batch, height, width, -1)  # (B, H, W, C)
    if layer.lce is not None:
        out = out + layer.lce(value.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    return layer.out_proj(out)


def _plain_block(block: ManhattanBlock, x: Tensor, relations: Relations) -> Tensor:
    def branch(y: Tensor, gamma: Tensor | None) -> Tensor:
        return block.drop_path(y if gamma is None else gamma * y)

    x = x + channels_last(block.cpe(channels_first(x)))
    x = x + branch(plain_manhattan_attention(block.attn, block.norm1(x), relations), block.gamma1)
    return x + branch(block.ffn(block.norm2(x)), block.gamma2)


class PlainRMT(Plain):
    """The features of an `RMT` by the plain formulation."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        model = self.layer
        x = model.stem(x)
        outputs = []
        for i, blocks in enumerate(model.stages):
            if i > 0:
                x = model.downsamples[i - 1](x.contiguous())
            x = channels_last(x)  # (B, H, W, C)
            relations = Relations(blocks[0].attn, x.shape[1], x.shape[2], x)
            for block in blocks:
                x = _plain_block(block, x, relations)
            outputs.append(channels_first(model.out_norms[str(i)](x)).contiguous())
            x = channels_first(x)  # (B, C, H, W)
        return tuple(outputs)
