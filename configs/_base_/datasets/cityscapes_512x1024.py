# Cityscapes (fine annotations, 19 classes): crops of 512x1024, tested on images of 1024x2048.
_base_ = "./cityscapes_769x769.py"
crop_size = (512, 1024)
train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="RandomResize", scale=(2048, 1024), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type="RandomCrop", crop_size=crop_size, cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(2048, 1024), keep_ratio=True),
    dict(type="CheckedLoadAnnotations"),  # scored at the original size
    dict(type="PackSegInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
