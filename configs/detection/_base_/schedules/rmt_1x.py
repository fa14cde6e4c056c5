# RMT's recipe for Mask R-CNN in 12 epochs (qhfan/RMT, detect/configs/RMT/maskrcnn_*_1x.py).
#
# The learning rate is the paper's, 1e-4 for a batch of 16. The published configs have 4e-4 (tiny,
# small, base) and 2e-4 (large) with two images per GPU, and the number of GPUs is not published. By
# the linear rule 4e-4 belongs to a batch of 64. The published training is in float16 with a dynamic
# loss scale; this one is in float32, and `--amp` turns mixed precision on.
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)}),
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
