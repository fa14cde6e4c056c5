# The protocol of the CamVid tables from ImageNet weights (docs/camvid.md): frames of full size, and
# the normalization of the weights. The learning rate is the best of 0.0005, 0.001, 0.002 and 0.004
# for FCN on the validation frames: 40.1, 61.2, 62.5 and 62.2 mIoU after 400 iterations.
_base_ = "./protocol_800.py"
crop_size = (320, 320)

train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="RandomResize", scale=(480, 360), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type="RandomCrop", crop_size=crop_size, cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="PackSegInputs"),
]
tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [dict(type="Resize", scale_factor=r, keep_ratio=True) for r in (0.75, 1.0, 1.25)],
            [
                dict(type="RandomFlip", prob=0.0, direction="horizontal"),
                dict(type="RandomFlip", prob=1.0, direction="horizontal"),
            ],
            [dict(type="CheckedLoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=2e-3))
