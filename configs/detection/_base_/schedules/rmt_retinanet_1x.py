# RMT's recipe for RetinaNet in 12 epochs (qhfan/RMT, detect/configs/RMT/retinanet_*_1x.py).
#
# rmt_1x.py explains the learning rate and the precision; the published loss scale is 512. Unlike
# Mask R-CNN's recipe, norms decay, too.
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.0001),
    clip_grad=None,
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=12, val_interval=1)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
auto_scale_lr = dict(enable=False, base_batch_size=16)
