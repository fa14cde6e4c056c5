# EANet with a ResNet-18 of base width 32 at output stride 16 on CamVid, from scratch: small enough
# for a CPU. docs/camvid.md has the result.
_base_ = [
    "./_base_/models/ea_r18.py",
    "./_base_/datasets/camvid.py",
    "./_base_/default_runtime.py",
]
crop_size = _base_.crop_size
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(base_channels=32, stem_channels=32, strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2)),
    decode_head=dict(in_channels=256, channels=64, ea_channels=128, num_classes=11),
)

optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-3, betas=(0.9, 0.999), weight_decay=0.02),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=100),
    dict(type="PolyLR", power=0.9, eta_min=0.0, by_epoch=False, begin=100, end=4000),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=4000, val_interval=500)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(checkpoint=dict(interval=500))
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=8)
