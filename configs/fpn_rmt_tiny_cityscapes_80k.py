# RMT-tiny with Semantic FPN on Cityscapes, tested on complete images. No recipe was published:
# this is RMT's for ADE20K on mmsegmentation's crops of 512x1024.
_base_ = [
    "./_base_/models/fpn_rmt.py",
    "./_base_/datasets/cityscapes_512x1024.py",
    "./_base_/schedules/rmt_fpn_80k.py",
    "./_base_/default_runtime.py",
]
env_cfg = dict(cudnn_benchmark=False)  # cuDNN compiles depthwise convolutions to tune them
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
)
train_dataloader = dict(batch_size=2)  # per GPU, on 8 GPUs
default_hooks = dict(checkpoint=dict(interval=4000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
