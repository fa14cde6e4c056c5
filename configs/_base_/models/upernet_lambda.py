# UPerNet on LambdaResNet: four maps of strides 4 to 32. The experiment sets the variant.
_base_ = "./upernet.py"
model = dict(
    backbone=dict(type="LambdaResNet", norm_cfg=dict(type="SyncBN", requires_grad=True)),
    neck=None,
    decode_head=dict(in_channels=[256, 512, 1024, 2048]),
    auxiliary_head=dict(in_channels=1024),
)
