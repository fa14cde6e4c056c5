# CamVid at 480x360 from ImageNet weights. weights/README.md has the results.
_base_ = ["../models/lite0_fpn.py", "../datasets/camvid_320.py", "../default_runtime.py"]
# Inverse to the square root of the share of the training pixels.
class_weight = [0.877, 0.746, 3.63, 0.64, 1.7, 1.15, 3.32, 3.39, 1.49, 4.5, 6.66]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(output_stride=16),
    decode_head=dict(num_classes=11, loss_decode=dict(class_weight=class_weight)),
)
train_dataloader = dict(batch_size=16, num_workers=4)

optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-3, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=100),
    dict(type="PolyLR", power=0.9, eta_min=0.0, by_epoch=False, begin=100, end=1600),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=1600, val_interval=1600)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(checkpoint=dict(interval=400))
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=16)
