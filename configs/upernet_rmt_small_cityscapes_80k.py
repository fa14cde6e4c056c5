# RMT-small with UPerNet on Cityscapes, tested on complete images. No recipe was published: this is
# RMT's for ADE20K on mmsegmentation's crops of 512x1024 with half the iterations.
_base_ = [
    "./_base_/models/upernet_rmt.py",
    "./_base_/datasets/cityscapes_512x1024.py",
    "./_base_/schedules/rmt_upernet_160k.py",
    "./_base_/default_runtime.py",
]
env_cfg = dict(cudnn_benchmark=False)  # cuDNN compiles depthwise convolutions to tune them
model = dict(data_preprocessor=dict(size=_base_.crop_size))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, begin=0, end=1501, by_epoch=False),
    dict(type="PolyLR", power=1.0, eta_min=0.0, begin=0, end=80000, by_epoch=False),
]
train_cfg = dict(max_iters=80000)
train_dataloader = dict(batch_size=2)  # per GPU, on 8 GPUs
default_hooks = dict(checkpoint=dict(interval=8000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
