# The protocol of the CamVid table without the model (docs/camvid.md). Images have half the size,
# 240x180, for training on a CPU. Predictions are enlarged and scored at 480x360.
_base_ = [
    "../../../configs/_base_/datasets/camvid.py",
    "../../../configs/_base_/default_runtime.py",
]
crop_size = (160, 160)

train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="RandomResize", scale=(240, 180), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type="RandomCrop", crop_size=crop_size, cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(240, 180), keep_ratio=True),
    dict(type="CheckedLoadAnnotations"),
    dict(type="PackSegInputs"),
]
img_ratios = [0.375, 0.5, 0.625]  # of 480x360
tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [dict(type="Resize", scale_factor=r, keep_ratio=True) for r in img_ratios],
            [
                dict(type="RandomFlip", prob=0.0, direction="horizontal"),
                dict(type="RandomFlip", prob=1.0, direction="horizontal"),
            ],
            [dict(type="CheckedLoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]
train_dataloader = dict(batch_size=4, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
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
