# The protocol of the CamVid table without the model. docs/camvid.md describes it.
_base_ = ["./half_size.py", "../../../configs/_base_/default_runtime.py"]
optim_wrapper = dict(
    type="PortableAmpOptimWrapper",  # bfloat16 on a CPU
    optimizer=dict(type="AdamW", lr=6e-3, betas=(0.9, 0.999), weight_decay=0.02),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=50),
    dict(type="PolyLR", power=0.9, eta_min=0.0, by_epoch=False, begin=50, end=800),
]
train_cfg = dict(type="IterBasedTrainLoop", max_iters=800, val_interval=800)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")
default_hooks = dict(checkpoint=dict(interval=160, save_best=None, max_keep_ckpts=1))
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=4)
