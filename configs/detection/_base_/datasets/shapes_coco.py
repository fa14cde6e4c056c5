# The embedded scenes (mmseg_ext/datasets/shapes.py) with COCO annotations: 5 classes, 128x128.
# The first use makes them: 640 scenes for training, 128 others for validation.
dataset_type = "ShapesCocoDataset"
data_root = "data/shapes/"
recipe = dict(seed=0, train=640, val=128, size=128)

train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(128, 128), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        recipe=recipe,
        ann_file="annotations/instances_train.json",
        data_prefix=dict(img=""),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        recipe=recipe,
        ann_file="annotations/instances_val.json",
        data_prefix=dict(img=""),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type="CocoMetric",
    ann_file=data_root + "annotations/instances_val.json",
    metric=["bbox", "segm"],
)
test_evaluator = val_evaluator
