# mmsegmentation's SGD schedule of 40k iterations: poly decay of power 0.9 down to 1e-4.
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="SGD", lr=0.01, momentum=0.9, weight_decay=5e-4),
    clip_grad=None,
)
param_scheduler = [dict(type="PolyLR", power=0.9, eta_min=1e-4, begin=0, end=40000, by_epoch=False)]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=40000, val_interval=4000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
