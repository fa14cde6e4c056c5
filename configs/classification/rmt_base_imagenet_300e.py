# RMT-base on ImageNet-1k; the paper has 85.0 % top-1.
_base_ = "./rmt_tiny_imagenet_300e.py"
model = dict(backbone=dict(arch="base"))
