# The twin of deepvit_16b_imagenet_300e.py with plain attention.
_base_ = "./deepvit_16b_imagenet_300e.py"
model = dict(backbone=dict(re_attention=False))
