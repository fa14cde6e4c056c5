"""Re-attention by equation 3 of arXiv 2103.11886, with the modules of our layer."""

from torch import Tensor, nn

from benchmarks.reference import Plain


class PlainReAttention(Plain):
    """Softmax, 1x1 convolution over the heads, norm and weighted sum, without dropout of maps."""

    def __init__(self, layer: nn.Module, transform_scale: bool = False):
        super().__init__(layer)
        self.transform_scale = transform_scale

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
        if self.transform_scale:
            maps = maps * v.shape[-1] ** -0.5
        y = maps @ v  # (B, H, N, d)
        return layer.proj(y.transpose(1, 2).flatten(2))  # (B, N, C)
