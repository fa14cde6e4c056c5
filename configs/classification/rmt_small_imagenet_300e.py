# RMT-small on ImageNet-1k; the paper has 84.1 % top-1.
_base_ = [
    "./_base_/classifier.py",
    "./_base_/imagenet_224.py",
    "./_base_/rmt_300e.py",
    "./_base_/default_runtime.py",
]
model = dict(
    backbone=dict(type="RMT", arch="small", norm_cfg=dict(type="SyncBN", requires_grad=True))
)
train_dataloader = dict(sampler=dict(type="RepeatAugSampler", shuffle=True))
