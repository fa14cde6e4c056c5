# RMT with Semantic FPN (qhfan/RMT, segmentation/configs/_base_/models/RMT_fpn.py).
# The experiment sets the arch, its widths, and `data_preprocessor.size`, the dataset's crop_size.
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
    # The published ImageNet weights, converted by `mmseg-ext convert rmt SRC DST`.
    backbone=dict(
        type="RMT",
        arch="tiny",
        out_indices=(0, 1, 2, 3),
        norm_cfg=norm_cfg,
        init_cfg=dict(type="Pretrained", checkpoint="pretrained/rmt_tiny.pth"),
    ),
    neck=dict(type="FPN", in_channels=[64, 128, 256, 512], out_channels=256, num_outs=4),
    decode_head=dict(
        type="FPNHead",
        in_channels=[256, 256, 256, 256],
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=128,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
