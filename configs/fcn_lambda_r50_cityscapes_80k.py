# FCN on LambdaResNet-50 on Cityscapes: the lambda layers of the comparison with convolutions
# (fcn_conv_r50_cityscapes_80k.py) and squeeze-excitation (fcn_se_r50_cityscapes_80k.py), which
# differ in nothing else. mmsegmentation's protocol for ResNet-50 of output stride 8 at 769x769.
_base_ = [
    "./_base_/models/fcn_lambda_r50-d8.py",
    "./_base_/datasets/cityscapes_769x769.py",
    "./_base_/schedules/schedule_80k.py",
    "./_base_/default_runtime.py",
]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    decode_head=dict(align_corners=True),
    auxiliary_head=dict(align_corners=True),
    test_cfg=dict(mode="slide", crop_size=_base_.crop_size, stride=(513, 513)),
)
default_hooks = dict(checkpoint=dict(interval=8000))
auto_scale_lr = dict(enable=False, base_batch_size=8)
