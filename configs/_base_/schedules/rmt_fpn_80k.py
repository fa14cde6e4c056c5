# RMT's published recipe for Semantic FPN (qhfan/RMT, segmentation/configs/RMT/RMT_FPN_*_1x.py):
# AdamW on all parameters alike, poly decay of power 0.9 down to 1e-6, no warm-up.
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4),
    clip_grad=None,
)
param_scheduler = [dict(type="PolyLR", power=0.9, eta_min=1e-6, begin=0, end=80000, by_epoch=False)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=80000, val_interval=4000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
