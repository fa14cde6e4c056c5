# UPerNet on DeepViT: maps of four blocks, all of stride 16, to a pyramid of strides 4 to 32.
# `data_preprocessor.size` is the dataset's crop_size: the experiment sets it.
norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[127.5, 127.5, 127.5],  # R, G, B of the published weights
        std=[127.5, 127.5, 127.5],
        bgr_to_rgb=True,
        pad_val=0,  # after normalisation: mid grey
        seg_pad_val=255,
    ),
    # To start from published weights, convert them with tools/model_converters/deepvit2mmseg.py and
    # set init_cfg=dict(type="Pretrained", checkpoint=...).
    backbone=dict(
        type="DeepViT",
        arch="16b",
        # Of the pretraining, not of the crops: positions are interpolated, and the normalisation of
        # the attention maps is rescaled, from this size.
        img_size=224,
        out_indices=(3, 7, 11, 15),
        drop_path_rate=0.2,  # the published training's
    ),
    neck=dict(
        type="MultiLevelNeck",
        in_channels=[384, 384, 384, 384],
        out_channels=384,
        scales=[4, 2, 1, 0.5],
    ),
    decode_head=dict(
        type="UPerHead",
        in_channels=[384, 384, 384, 384],
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
        in_channels=384,
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
