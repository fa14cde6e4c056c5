# ResNet-18 of a quarter of the usual width, for all heads of the CamVid table; the configs add a
# head. A class's weight is inverse to its share of the training
# pixels to the power of 3/4; docs/camvid.md has the reason.
_base_ = ["../../../configs/_base_/models/r18-d8.py", "./protocol_800.py"]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    decode_head=dict(
        in_channels=128,
        in_index=3,
        channels=64,
        dropout_ratio=0.1,
        num_classes=11,
        norm_cfg=_base_.norm_cfg,
        align_corners=False,
        loss_decode=dict(
            type="CrossEntropyLoss",
            use_sigmoid=False,
            loss_weight=1.0,
            class_weight=[0.66, 0.52, 5.54, 0.41, 1.78, 0.98, 4.84, 5.00, 1.46, 7.64, 13.8],
        ),
    ),
)
