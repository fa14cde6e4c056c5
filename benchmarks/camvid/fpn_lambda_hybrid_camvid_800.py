# LambdaResNet with lambda layers in its last two stages, one block in each, with Semantic FPN
# with the budget of the CamVid table (docs/camvid.md).
_base_ = "./_base_/fpn.py"
model = dict(
    backbone=dict(
        type="LambdaResNet",
        depth=(1, 1, 1, 1),
        placement=((), (), (0,), (0,)),
        receptive_field=7,
        norm_cfg=_base_.norm_cfg,
    ),
    neck=dict(in_channels=[256, 512, 1024, 2048]),
)
