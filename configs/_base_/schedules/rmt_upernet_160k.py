# RMT's published recipe for UPerNet (qhfan/RMT, segmentation/configs/RMT/RMT_Uper_*_2x.py). Two of
# those files divide by zero: s in its warm-up, which is 1500 iterations as in m and l, and m in the
# interval of its checkpoints, which is 8000 as in s and l.
# Published in float16 with a loss scale of 512, under a warning of NaN losses; here in float32.
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    # Every module with "norm" in its name: those of the blocks, outputs and downsamplings, not the
    # stem's.
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
