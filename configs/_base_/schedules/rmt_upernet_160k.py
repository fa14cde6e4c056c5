# RMT's published recipe for UPerNet (qhfan/RMT, segmentation/configs/RMT/RMT_Uper_*_2x.py). Two of
# these files divide by zero: s in its warm-up, here 1500 iterations as in m and l, and m in its
# checkpoint interval, here 8000 as in s and l. The published training is in float16 with a loss
# scale of 512 and a warning of NaN losses; this one is in float32.
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    # Modules with "norm" in their names: in blocks, outputs and downsamplings, but not in
    # the stem.
    paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0)}),
    clip_grad=None,
)
# The warm-up multiplies the linear decay, which starts at the first iteration.
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, begin=0, end=1501, by_epoch=False),
    dict(type="PolyLR", power=1.0, eta_min=0.0, begin=0, end=160000, by_epoch=False),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=160000, val_interval=8000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
