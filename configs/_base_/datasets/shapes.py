# The embedded dataset (mmseg_ext/datasets/shapes.py): 5 classes and background, 128x128 scenes.
# It is generated from its seed at first use: 640 scenes for training, 128 for validation.
dataset_type = "ShapesDataset"
data_root = "data/shapes"
recipe = dict(seed=0, train=640, val=128, size=128)
crop_size = (96, 96)

train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="RandomResize", scale=(128, 128), ratio_range=(0.8, 1.25), keep_ratio=True),
    dict(type="RandomCrop", crop_size=crop_size),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="PackSegInputs"),
]
img_ratios = [0.75, 1.0, 1.25]
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
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        recipe=recipe,
        ann_file="ImageSets/Segmentation/train.txt",
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        recipe=recipe,
        ann_file="ImageSets/Segmentation/val.txt",
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="CheckedIoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
