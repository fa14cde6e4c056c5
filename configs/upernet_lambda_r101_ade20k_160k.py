# UPerNet on LambdaResNet-101 (lambda layers in all blocks) on ADE20K, from random weights; no
# weights of it are published. mmsegmentation's protocol for UPerNet on ResNet-101.
_base_ = [
    "./_base_/models/upernet_lambda.py",
    "./_base_/datasets/ade20k.py",
    "./_base_/schedules/schedule_160k.py",
    "./_base_/default_runtime.py",
]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(depth=101),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
default_hooks = dict(checkpoint=dict(interval=16000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
