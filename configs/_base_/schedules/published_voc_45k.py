# EANet's published VOC schedule (MenghaoGuo/EANet, train_torch.py and settings.py).
# The loop runs iterations 0 to 45,000 inclusive; the rate of the last one is exactly zero.
max_iters = 45001
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="SGD", lr=9e-3, momentum=0.9, weight_decay=1e-4),
    # Three groups: only the weights of convolutions decay; every bias, also a batch norm's, has
    # twice the rate.
    constructor="RoleOptimWrapperConstructor",
    paramwise_cfg=dict(bias_lr_mult=2.0, bias_decay_mult=0.0, norm_decay_mult=0.0),
)
# lr * (1 - i / 45000) ** 0.9, recomputed every 10 iterations; no warm-up, no floor.
param_scheduler = [
    dict(
        type="HeldPolyLR",
        interval=10,
        power=0.9,
        eta_min=0.0,
        begin=0,
        end=max_iters,
        by_epoch=False,
    )
]
# Published: validation every 600 iterations, which does not change the weights.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=max_iters, val_interval=600)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
