# RMT's recipe for Mask and Cascade Mask R-CNN in 36 epochs (qhfan/RMT, detect/configs/RMT/
# maskrcnn_*_3x.py and casrcnn_*_3x.py).
#
# The learning rate is the paper's, 1e-4 for a batch of 16. The published configs have 4e-4 (small)
# and 2e-4 (base) with two images for each GPU, of a number of GPUs that is nowhere stated; see
# rmt_1x.py. Published in float16 with a dynamic loss scale; here in float32, `--amp` is mixed
# precision.
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)}),
    clip_grad=None,
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=36, val_interval=1)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
auto_scale_lr = dict(enable=False, base_batch_size=16)
