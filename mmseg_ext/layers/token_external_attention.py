"""External attention on tokens: the plain equations and the multi-head form.

Paper: Guo, Liu, Mu, Hu, "Beyond Self-attention: External Attention using Two Linear Layers for
Visual Tasks", arXiv:2105.02358 (TPAMI 2022).
Published code: MenghaoGuo/EANet, `multi_head_attention_torch.py` (`Attention`). `ExternalAttention`
follows the widely copied form in xmu-xiaoma666/External-Attention-pytorch.

Deviations from the published code: none.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mmseg_ext.layers.external_attention import double_normalize
from mmseg_ext.layers.input_shapes import head_width, require_tokens
from mmseg_ext.layers.precision import full_precision


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
