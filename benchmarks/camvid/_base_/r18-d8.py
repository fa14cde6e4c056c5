# ResNet-18 for all heads of the CamVid table: a quarter of the usual width, output stride 8, no
# pretrained weights. The experiment adds the head. A class's weight is inverse to its share of the
# training pixels to the power of 3/4; docs/camvid.md has the reason.
norm_cfg = dict(type="BN", requires_grad=True)
model = dict(
    type="StripEncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[123.675, 116.28, 103.53],  # R, G, B of ImageNet
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,  # after normalization: the mean color
        seg_pad_val=255,
    ),
    pretrained=None,
    backbone=dict(
        type="ResNetV1c",
        depth=18,
        base_channels=16,
        stem_channels=16,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        dilations=(1, 1, 2, 4),
        strides=(1, 2, 1, 1),
        norm_cfg=norm_cfg,
        norm_eval=False,
        style="pytorch",
        contract_dilation=True,
    ),
    decode_head=dict(
        in_channels=128,
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
            class_weight=[0.66, 0.52, 5.54, 0.41, 1.78, 0.98, 4.84, 5.00, 1.46, 7.64, 13.8],
        ),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
