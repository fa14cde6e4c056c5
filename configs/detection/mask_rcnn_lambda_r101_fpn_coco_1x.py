# LambdaResNet-101 with Mask R-CNN on COCO at 1024x1024. The paper does not say which blocks hold
# lambda layers, nor the augmentation and the schedule. Here they are the hybrid of its classifiers
# and mmdetection's 12 epochs for a ResNet.
_base_ = [
    "./_base_/models/mask_rcnn_lambda_fpn.py",
    "./_base_/datasets/coco_instance_1024.py",
    "./_base_/schedules/sgd_1x.py",
    "./_base_/default_runtime.py",
]
