# DeepViT-S (convolutional patch embedding, re-attention in the last 5 of 16 blocks) with UPerNet on
# ADE20K, by the recipe of upernet_deepvit_16b_ade20k_160k.py.
_base_ = "./upernet_deepvit_16b_ade20k_160k.py"
model = dict(
    backbone=dict(arch="s"),
    neck=dict(in_channels=[396, 396, 396, 396]),
)
