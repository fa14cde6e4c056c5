# The authors' second head on Cityscapes: Jittor/JSeg,
# project/eanet/eanet_r50-d8_769x769_cityscapes_40k.py, which reports 79.9 mIoU single-scale and
# 81.0 multi-scale with flip on val.
_base_ = [
    "./_base_/models/jseg_ea_r50-d8.py",
    "./_base_/datasets/cityscapes_769x769.py",
    "./_base_/schedules/schedule_40k.py",
    "./_base_/default_runtime.py",
]
crop_size = _base_.crop_size
model = dict(
    data_preprocessor=dict(size=crop_size),
    decode_head=dict(
        align_corners=True,
        # JSeg divides the weighted loss by the number of pixels, mmseg by the sum of their class
        # weights. avg_non_ignore must stay False: with class weights True raises in the stack.
        loss_decode=dict(
            avg_non_ignore=False,
            class_weight=[
                0.8373,
                0.918,
                0.866,
                1.0345,
                1.0166,
                0.9969,
                0.9754,
                1.0489,
                0.8786,
                1.0023,
                0.9539,
                0.9843,
                1.1116,
                0.9037,
                1.0865,
                1.0955,
                1.0865,
                1.1529,
                1.0507,
            ],
        ),
        sampler=dict(type="OHEMPixelSampler", thresh=0.7, min_kept=100000),
    ),
    auxiliary_head=dict(align_corners=True),
    test_cfg=dict(mode="slide", crop_size=crop_size, stride=(513, 513)),
)
train_cfg = dict(val_interval=2000)  # as JSeg's schedule_40k.py
default_hooks = dict(checkpoint=dict(interval=2000))
auto_scale_lr = dict(enable=False, base_batch_size=8)
