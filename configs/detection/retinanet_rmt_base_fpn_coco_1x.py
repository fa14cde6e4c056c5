# RMT-base with RetinaNet on COCO, 12 epochs.
_base_ = [
    "./_base_/models/retinanet_rmt_fpn.py",
    "./_base_/datasets/coco_detection.py",
    "./_base_/schedules/rmt_retinanet_1x.py",
    "./_base_/default_runtime.py",
]
model = dict(
    backbone=dict(arch="base", init_cfg=dict(checkpoint="pretrained/rmt_base.pth")),
    neck=dict(in_channels=[160, 320, 512]),
)
