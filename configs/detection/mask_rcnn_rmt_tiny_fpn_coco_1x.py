# RMT-tiny with Mask R-CNN on COCO, 12 epochs.
_base_ = [
    "./_base_/models/mask_rcnn_rmt_fpn.py",
    "./_base_/datasets/coco_instance.py",
    "./_base_/schedules/rmt_1x.py",
    "./_base_/default_runtime.py",
]
