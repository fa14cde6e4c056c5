# A ResNet-18 of base width 32 under a feature pyramid, from scratch. The head joins the pyramid's
# four maps at output stride 4.
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
        base_channels=32,
        stem_channels=32,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        norm_cfg=norm_cfg,
        norm_eval=False,
        style="pytorch",
    ),
    neck=dict(
        type="FPN",
        in_channels=[32, 64, 128, 256],
        out_channels=32,
        num_outs=4,
        norm_cfg=norm_cfg,
    ),
    decode_head=dict(
        in_channels=[32, 32, 32, 32],
        in_index=[0, 1, 2, 3],
        input_transform="resize_concat",
        channels=64,
        dropout_ratio=0.1,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
