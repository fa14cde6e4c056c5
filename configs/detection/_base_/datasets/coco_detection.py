# COCO 2017 at one scale for boxes alone, as published for the 1x schedules (qhfan/RMT,
# detect/configs/_base_/datasets/coco_detection.py): coco_instance.py without the masks.
_base_ = "./coco_instance.py"

train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(type="Resize", scale=(1333, 800), keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="Resize", scale=(1333, 800), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
val_evaluator = dict(metric="bbox")
test_evaluator = dict(metric="bbox")
