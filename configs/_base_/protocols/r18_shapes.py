# The embedded dataset, from scratch on two CPU cores, without the head.
_base_ = [
    "../models/r18-d8.py",
    "../datasets/shapes.py",
    "../default_runtime.py",
]
crop_size = _base_.crop_size
model = dict(data_preprocessor=dict(size=_base_.crop_size))

optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=8e-3, betas=(0.9, 0.99), weight_decay=0.02),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=130),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=False, begin=130, end=1300),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=1300, val_interval=325)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(interval=1300, max_keep_ckpts=1, save_best=None)
)
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=8)
