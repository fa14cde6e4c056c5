"""Re-attention by equation 3 of arXiv 2103.11886, with the modules of our layer."""

from torch import Tensor, nn

from mmseg_ext.layers import ReAttention


class PlainReAttention(nn.Module):
    """Softmax, 1x1 convolution over the heads, norm and weighted sum, on the maps of all heads.

    It calls the modules of `layer`, without dropout of the maps.
    """

    def __init__(self, layer: ReAttention):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        qkv = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1))  # (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # each (B, H, N, d)
        maps = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)  # (B, H, N, N)
        maps = layer.reatten_matrix(maps)
        if isinstance(layer.var_norm, nn.LayerNorm):
            maps = layer.var_norm(maps.movedim(1, -1)).movedim(-1, 1)
        else:
            maps = layer.var_norm(maps)
        y = maps * layer.map_scale @ v  # (B, H, N, d)
        return layer.proj(y.transpose(1, 2).flatten(2))  # (B, N, C)
