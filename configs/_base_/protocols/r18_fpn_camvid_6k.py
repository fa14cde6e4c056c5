# CamVid at 480x360 from scratch, for a CPU. docs/camvid.md has the results.
_base_ = ["../models/r18_fpn.py", "../datasets/camvid_320.py", "../default_runtime.py"]
# With the share of the training pixels to the power of -3/4.
class_weight = [0.66, 0.52, 5.54, 0.41, 1.78, 0.98, 4.84, 5.00, 1.46, 7.64, 13.8]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    decode_head=dict(num_classes=11, loss_decode=dict(class_weight=class_weight)),
)
train_dataloader = dict(batch_size=4, num_workers=1)

optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=2e-3, betas=(0.9, 0.999), weight_decay=0.02),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=100),
    dict(type="PolyLR", power=0.9, eta_min=0.0, by_epoch=False, begin=100, end=6000),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=6000, val_interval=1000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(checkpoint=dict(interval=250))
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=4)
