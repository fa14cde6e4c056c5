"""External attention on tokens: the plain equations and the multi-head form.

Paper: Guo, Liu, Mu, Hu, "Beyond Self-attention: External Attention using Two Linear Layers for
Visual Tasks", arXiv:2105.02358 (TPAMI 2022).
Published code: MenghaoGuo/EANet, `multi_head_attention_torch.py` (`Attention`). `ExternalAttention`
follows the widely copied form in xmu-xiaoma666/External-Attention-pytorch.

Deviations from the published code: none.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers.external_attention import double_normalize
from mmseg_ext.layers.input_shapes import head_width, require_tokens
from mmseg_ext.layers.precision import full_precision
from mmseg_ext.layers.submodules import computes_by_weights


class ExternalAttention(nn.Module):
    """Two linear memories with double normalization, (B, N, C) to (B, N, C).

    Equations 7, 8, 10 and 11 of the paper, with the names and the initialization of the widely
    copied form. It cannot load weights of `ExternalAttention2d` or `MultiHeadExternalAttention`.

    Args:
        embed_dim: C, the width of a token.
        memory_size: S, the number of slots of each memory.

    Raises:
        ValueError: in `forward`, if the input is not (B, N, embed_dim).
    """

    def __init__(self, embed_dim: int, memory_size: int = 64):
        super().__init__()
        self.embed_dim = embed_dim
        self.mk = nn.Linear(embed_dim, memory_size, bias=False)
        self.mv = nn.Linear(memory_size, embed_dim, bias=False)
        nn.init.normal_(self.mk.weight, std=0.001)
        nn.init.normal_(self.mv.weight, std=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, N, C) to (B, N, C)."""
        return self.mv(self.attention_map(x))  # (B, N, C)

    def attention_map(self, x: Tensor) -> Tensor:
        """Return the weights of the memory slots for each token of x (B, N, C), (B, N, S)."""
        require_tokens(x, self.embed_dim)
        logits = self.mk(x)  # (B, N, S)
        shares = logits.softmax(1, dtype=full_precision(logits.dtype))
        # The copied form does not add an epsilon to the sum. This bound only prevents 0 / 0.
        return F.normalize(shares, p=1, dim=-1, eps=1e-30).to(logits.dtype)


class MultiHeadExternalAttention(nn.Module):
    """Multi-head external attention (paper, section 3.3), (B, N, C) to (B, N, C).

    Tokens are widened from C to `expansion` C and split into G = `expansion` x `num_heads` groups
    of width C / `num_heads`. All groups attend to the same two memories of S slots, which have
    biases here. The published code widens four times and has 64 slots.

    The biases before the softmax over tokens have no effect and a zero gradient.

    Args:
        embed_dim: C, a multiple of `num_heads`.
        expansion: factor for the width of the tokens and for the number of heads.
        memory_size: S, the slots of the shared memories.
        attn_drop: dropout of the normalized attention.
        proj_drop: dropout of the output.

    Raises:
        ValueError: if `embed_dim` is not a multiple of `num_heads`, and in `forward` if the input
            is not (B, N, embed_dim).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        expansion: int = 4,
        memory_size: int = 64,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.groups = num_heads * expansion
        self.memory_size = memory_size
        head_dim = head_width(embed_dim, num_heads)
        self.trans_dims = nn.Linear(embed_dim, embed_dim * expansion)
        self.linear_0 = nn.Linear(head_dim, memory_size)
        self.linear_1 = nn.Linear(memory_size, head_dim)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(embed_dim * expansion, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, N, C) to (B, N, C)."""
        attention = self.attn_drop(self.attention_map(x).transpose(1, 2))  # (B, N, G, S)
        return self.proj_drop(self.proj(self.linear_1(attention).flatten(2)))  # (B, N, C)

    def attention_map(self, x: Tensor) -> Tensor:
        """Return the weights of the memory slots for x (B, N, C), (B, G, N, S)."""
        require_tokens(x, self.embed_dim)
        wide = self.trans_dims(x).unflatten(-1, (self.groups, -1))  # (B, N, G, C / heads)
        attention = double_normalize(self.linear_0(wide), positions=1, slots=-1)  # (B, N, G, S)
        return attention.transpose(1, 2)  # (B, G, N, S)

    def fuse(self) -> nn.Module:
        """Return the inference form: adjacent linear maps are multiplied into one map.

        The result is a copy of this module if composed maps would cost more (memories wider than
        the heads), or if a submodule has hooks or adapters.
        """
        slots, wide = self.groups * self.memory_size, self.proj.in_features
        fewer = slots * self.embed_dim < wide * (self.embed_dim + self.memory_size)
        if fewer and computes_by_weights(*self.children()):
            return FusedMultiHeadExternalAttention(self).eval()
        return copy.deepcopy(self).eval()


class FusedMultiHeadExternalAttention(nn.Module):
    """Inference form of `MultiHeadExternalAttention`: two linear maps and the normalization.

    EAMLP-14's layer takes 24.3 instead of 34.5 ms for 1025 tokens (docs/external_attention.md).
    """

    @torch.no_grad()
    def __init__(self, block: MultiHeadExternalAttention):
        super().__init__()
        self.embed_dim = block.embed_dim
        self.groups = groups = block.groups
        slots = groups * block.memory_size
        # No bias: it is the same for all tokens, so the softmax over tokens removes it.
        self.keys = nn.Linear(block.embed_dim, slots, bias=False)
        self.values = nn.Linear(slots, block.embed_dim)
        self.to(block.proj.weight)
        widen, narrow = block.trans_dims.weight, block.proj.weight
        dtype = full_precision(widen.dtype)
        widen = widen.to(dtype).unflatten(0, (groups, -1))  # (G, C / heads, C)
        narrow = narrow.to(dtype).unflatten(1, (groups, -1))  # (C, G, C / heads)
        bias = narrow.sum(1) @ block.linear_1.bias.to(dtype)  # (C,)
        self.keys.weight.copy_((block.linear_0.weight.to(dtype) @ widen).flatten(0, 1))
        self.values.weight.copy_((narrow @ block.linear_1.weight.to(dtype)).flatten(1))
        self.values.bias.copy_(block.proj.bias + bias)

    def forward(self, x: Tensor) -> Tensor:
        require_tokens(x, self.embed_dim)
        logits = self.keys(x).unflatten(-1, (self.groups, -1))  # (B, N, G, S)
        attention = double_normalize(logits, positions=1, slots=-1)
        return self.values(attention.flatten(2))  # (B, N, C)
