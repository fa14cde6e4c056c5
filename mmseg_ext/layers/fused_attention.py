"""PyTorch's fused attention without cuDNN's kernel, which torch 2.10 and newer prefer on Hopper.

With a mask at lengths of 64 modulo 128, its gradients are reported to be NaN where all logits of a
row are small (pytorch/pytorch#196678). It also compiles for each new shape.
"""

import torch.nn.functional as F
from torch import Tensor

from mmseg_ext.layers.programs import is_recorded
from mmseg_ext.torch_versions import set_cudnn_attention


def fused_attention(q: Tensor, k: Tensor, v: Tensor, **settings) -> Tensor:
    """Run `scaled_dot_product_attention` with any kernel but cuDNN's.

    A compiled program chooses the kernel when it is compiled, by the settings of the process.
    """
    if not q.is_cuda or is_recorded():
        return F.scaled_dot_product_attention(q, k, v, **settings)
    before = set_cudnn_attention(False)
    try:
        return F.scaled_dot_product_attention(q, k, v, **settings)
    finally:
        set_cudnn_attention(before)
