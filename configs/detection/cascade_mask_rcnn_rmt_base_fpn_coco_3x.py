# RMT-base with Cascade Mask R-CNN on COCO, 36 epochs, many scales.
_base_ = [
    "./_base_/models/cascade_mask_rcnn_rmt_fpn.py",
    "./_base_/datasets/coco_instance_multi_scale.py",
    "./_base_/schedules/rmt_3x.py",
    "./_base_/default_runtime.py",
]
model = dict(
    backbone=dict(arch="base", init_cfg=dict(checkpoint="pretrained/rmt_base.pth")),
    neck=dict(in_channels=[80, 160, 320, 512]),
)
