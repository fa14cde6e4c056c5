# RMT-large on ImageNet-1k; the paper has 85.5 % top-1.
_base_ = "./rmt_tiny_imagenet_300e.py"
model = dict(backbone=dict(arch="large"))
