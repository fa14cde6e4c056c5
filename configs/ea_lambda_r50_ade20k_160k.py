# EANet on LambdaResNet-50 on ADE20K by mmsegmentation's standard protocol.
_base_ = [
    "./_base_/models/ea_lambda_r50-d8.py",
    "./_base_/datasets/ade20k.py",
    "./_base_/schedules/schedule_160k.py",
    "./_base_/default_runtime.py",
]
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
default_hooks = dict(checkpoint=dict(interval=16000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
