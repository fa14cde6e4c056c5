# CamVid for frames of 480x360: crops of 320x320. A photo is resized to the size of a frame.
_base_ = "./camvid.py"
crop_size = (320, 320)

scale = (480, 360)
train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="CheckedLoadAnnotations"),
    dict(type="RandomResize", scale=scale, ratio_range=(0.7, 1.6), keep_ratio=True),
    dict(type="RandomCrop", crop_size=crop_size, cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=scale, keep_ratio=True),
    dict(type="CheckedLoadAnnotations"),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
