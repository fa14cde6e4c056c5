# CamVid, 11 classes, 480x360.
dataset_type = "CamVidDataset"
data_root = "data/camvid"
image_counts = dict(train=367, val=101, test=233)  # fewer are a warning
crop_size = (224, 224)

train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="RandomResize", scale=(480, 360), ratio_range=(0.65, 1.5), keep_ratio=True),
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
img_ratios = [0.75, 1.0, 1.25, 1.5]
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
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="train", seg_map_path="trainannot"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="val", seg_map_path="valannot"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="CheckedIoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
