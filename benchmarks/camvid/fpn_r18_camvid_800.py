# ResNet-18 at output stride 16 with Semantic FPN with the budget of the CamVid table
# (docs/camvid.md).
_base_ = "./_base_/fpn.py"
model = dict(
    backbone=dict(
        type="ResNetV1c",
        depth=18,
        base_channels=42,
        stem_channels=42,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        strides=(1, 2, 2, 1),
        dilations=(1, 1, 1, 2),
        norm_cfg=_base_.norm_cfg,
        contract_dilation=True,
    ),
    neck=dict(in_channels=[42, 84, 168, 336]),
    decode_head=dict(feature_strides=[4, 8, 16, 16]),
)
