# The same with plain attention in every block, for comparison. The published code drops the scale
# adjustment together with re-attention; here it stays, and only re-attention differs.
_base_ = "./upernet_deepvit_s_ade20k_160k.py"
model = dict(backbone=dict(re_attention=False, scale_adjustment=0.5))
