# LambdaNetworks' 350 epochs at batch 4096 with a weight decay of 4e-5, RandAugment, label smoothing
# and a moving average. The paper does not give the rate and the warm-up: 0.1 per 256 images and
# five epochs are those of ResNet-RS. Our backbone has no dropout and no stochastic depth.
optim_wrapper = dict(
    type="OptimWrapper",
    optimizer=dict(type="SGD", lr=1.6, momentum=0.9, weight_decay=4e-5),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, end=5, convert_to_iter_based=True),
    dict(
        type="CosineAnnealingLR",
        eta_min=0.0,
        by_epoch=True,
        begin=5,
        end=350,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=350, val_interval=1)
val_cfg = dict()
test_cfg = dict()
custom_hooks = [dict(type="EMAHook", momentum=4e-5, priority="ABOVE_NORMAL")]  # decay 0.99996
auto_scale_lr = dict(enable=False, base_batch_size=4096)
