# The twin of deepvit_l_imagenet_300e.py with plain attention.
_base_ = "./deepvit_l_imagenet_300e.py"
model = dict(backbone=dict(re_attention=False))
