# PASCAL VOC 2012, trainaug (10,582 images), with EANet's published pipeline: the data code of
# EMANet (XiaLiPKU/EMANet, dataset.py) and the values of MenghaoGuo/EANet's settings.py.
dataset_type = "CheckedPascalVOCDataset"
data_root = "data/VOCdevkit/VOC2012"
image_counts = dict(train=10582, val=1449)  # fewer are a warning
crop_size = (513, 513)
mean_bgr = (103.53, 116.28, 123.675)  # the mean color: zero after normalization
train_pipeline = [
    dict(type="CheckedLoadImage"),
    dict(type="CheckedLoadAnnotations"),
    # settings.py: SCALES, 0.5 to 2.0 in steps of 0.1
    dict(type="RandomRatioScale", ratios=[ratio / 10 for ratio in range(5, 21)]),
    dict(type="Pad", size=crop_size, pad_val=dict(img=mean_bgr, seg=255)),
    dict(type="RandomCrop", crop_size=crop_size),
    dict(type="RandomFlip", prob=0.5),  # after padding, as published
    dict(type="PackSegInputs"),  # no photometric distortion
]
meta_keys = (
    "img_path",
    "seg_map_path",
    "ori_shape",
    "img_shape",
    "pad_shape",
    "img_padding_size",
    "flip",
    "flip_direction",
    "reduce_zero_label",
)
# Complete images at their own size, padded to 1 modulo 8.
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="PadToRemainder", pad_val=mean_bgr, divisor=8, remainder=1),
    dict(type="CheckedLoadAnnotations"),
    dict(type="PackSegInputs", meta_keys=meta_keys),
]
# The views of test_torch.py in its order; their logits are added.
tta_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(
        type="TestTimeAug",
        transforms=[
            [
                dict(type="RandomFlip", prob=0.0, direction="horizontal"),
                dict(type="RandomFlip", prob=1.0, direction="horizontal"),
            ],
            [
                dict(type="RandomRatioScale", ratios=[ratio])
                for ratio in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
            ],
            [dict(type="PadToRemainder", pad_val=mean_bgr, divisor=8, remainder=1)],
            [dict(type="CheckedLoadAnnotations")],
            [dict(type="PackSegInputs", meta_keys=meta_keys)],
        ],
    ),
]
# trainaug is VOC's train and the images from SBD. mmsegmentation's voc_aug.py writes a list and a
# folder for each.
train_dataloader = dict(
    batch_size=4,  # per GPU, on 4 GPUs
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type="ConcatDataset",
        datasets=[
            dict(
                type=dataset_type,
                data_root=data_root,
                data_prefix=dict(img_path="JPEGImages", seg_map_path="SegmentationClass"),
                ann_file="ImageSets/Segmentation/train.txt",
                pipeline=train_pipeline,
            ),
            dict(
                type=dataset_type,
                data_root=data_root,
                data_prefix=dict(img_path="JPEGImages", seg_map_path="SegmentationClassAug"),
                ann_file="ImageSets/Segmentation/aug.txt",
                pipeline=train_pipeline,
            ),
        ],
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="JPEGImages", seg_map_path="SegmentationClass"),
        ann_file="ImageSets/Segmentation/val.txt",
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="CheckedIoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
