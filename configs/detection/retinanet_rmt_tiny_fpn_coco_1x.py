# RMT-tiny with RetinaNet on COCO, 12 epochs.
_base_ = [
    "./_base_/models/retinanet_rmt_fpn.py",
    "./_base_/datasets/coco_detection.py",
    "./_base_/schedules/rmt_retinanet_1x.py",
    "./_base_/default_runtime.py",
]
