# UPerNet and an FCN auxiliary head. The config that uses it adds the backbone, the heads'
# in_channels, and `data_preprocessor.size`, which is the dataset's crop_size.
norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    # On a GPU, a test with one view is faster with "EncoderDecoder" (docs/gpu.md).
    type="StripEncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[123.675, 116.28, 103.53],  # R, G, B of ImageNet
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,  # after normalization: the mean color
        seg_pad_val=255,
    ),
    decode_head=dict(
        type="UPerHead",
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=512,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=dict(
        type="FCNHead",
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=0.4),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
