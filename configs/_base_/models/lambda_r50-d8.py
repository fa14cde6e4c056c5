# LambdaResNet-50 of output stride 8 with an FCN auxiliary head; the decode head is its users'.
# `data_preprocessor.size` is the dataset's crop_size: the experiment sets it.
norm_cfg = dict(type="SyncBN", requires_grad=True)
model = dict(
    type="StripEncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[123.675, 116.28, 103.53],  # R, G, B of ImageNet
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,  # after normalisation: the mean colour
        seg_pad_val=255,
    ),
    backbone=dict(type="LambdaResNet", depth=50, output_stride=8, norm_cfg=norm_cfg),
    auxiliary_head=dict(
        type="FCNHead",
        in_channels=1024,
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
