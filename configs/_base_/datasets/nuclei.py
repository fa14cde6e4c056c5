# Nuclei in microscopy images at their own scale: background, nucleus, border between nuclei.
dataset_type = "NucleiDataset"
data_root = "data/nuclei"
crop_size = (256, 256)  # the smallest images

train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="RandomCrop", crop_size=crop_size),
    dict(type="RandomRotFlip", rotate_prob=0.0, flip_prob=1.0),  # by multiples of 90 degrees
    # Many images are darker than the usual shift of 32.
    dict(type="PhotoMetricDistortion", brightness_delta=10),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="PackSegInputs"),
]
img_ratios = [1.0, 1.25]
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
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(type=dataset_type, data_root=data_root, split="train", pipeline=train_pipeline),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(type=dataset_type, data_root=data_root, split="val", pipeline=test_pipeline),
)
test_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(type=dataset_type, data_root=data_root, split="test", pipeline=test_pipeline),
)

val_evaluator = dict(type="CheckedIoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
