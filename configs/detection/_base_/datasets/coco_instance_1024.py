# COCO 2017 at 1024x1024, the size of LambdaNetworks' detection table: the longer side 1024, padded.
_base_ = "./coco_instance.py"

train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="Resize", scale=(1024, 1024), keep_ratio=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="Pad", size=(1024, 1024), pad_val=dict(img=(114, 114, 114))),
    dict(type="PackDetInputs"),
]
test_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="Resize", scale=(1024, 1024), keep_ratio=True),
    dict(type="Pad", size=(1024, 1024), pad_val=dict(img=(114, 114, 114))),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(
        type="PackDetInputs",
        meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor"),
    ),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
