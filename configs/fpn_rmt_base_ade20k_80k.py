# RMT-base with Semantic FPN on ADE20K, as published.
_base_ = [
    "./_base_/models/fpn_rmt.py",
    "./_base_/datasets/ade20k.py",
    "./_base_/schedules/rmt_fpn_80k.py",
    "./_base_/default_runtime.py",
]
env_cfg = dict(cudnn_benchmark=False)  # cuDNN compiles depthwise convolutions to tune them
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch="base",
        init_cfg=dict(checkpoint="pretrained/rmt_base.pth"),
    ),
    neck=dict(in_channels=[80, 160, 320, 512]),
    decode_head=dict(num_classes=150),
)
train_dataloader = dict(batch_size=2)  # per GPU, on 8 GPUs
default_hooks = dict(checkpoint=dict(interval=4000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
