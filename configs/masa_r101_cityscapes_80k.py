# MaSAHead (this project's own design) on Cityscapes by mmsegmentation's standard protocol for
# ResNet-101 of output stride 8 at 769x769, tested by sliding windows.
_base_ = [
    "./_base_/models/masa_r101-d8.py",
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
