# The same with plain attention in every block, for comparison (the paper's ViT of 16 blocks).
_base_ = "./upernet_deepvit_16b_ade20k_160k.py"
model = dict(backbone=dict(re_attention=False))
