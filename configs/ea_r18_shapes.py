# EANet on the embedded dataset, from scratch on two CPU cores: what `make demo` trains.
_base_ = [
    "./_base_/models/ea_r18.py",
    "./_base_/datasets/shapes.py",
    "./_base_/default_runtime.py",
]
crop_size = {{_base_.crop_size}}
model = dict(data_preprocessor=dict(size={{_base_.crop_size}}))

max_iters = 1100
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-3, betas=(0.9, 0.99), weight_decay=0.02),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=50),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=False, begin=50, end=1100),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=275)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(checkpoint=dict(interval=275, max_keep_ckpts=1))
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=8)
