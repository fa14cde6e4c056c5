# LambdaResNet-152 with Mask R-CNN on COCO at 1024x1024. Of the paper's experiment we know the table
# alone: which blocks hold lambda layers, the augmentation and the schedule are not in it. Here they
# are the paper's classification hybrid and mmdetection's 12 epochs for a ResNet.
_base_ = [
    "./_base_/models/mask_rcnn_lambda_fpn.py",
    "./_base_/datasets/coco_instance_1024.py",
    "./_base_/schedules/sgd_1x.py",
    "./_base_/default_runtime.py",
]
model = dict(
    backbone=dict(depth=152, init_cfg=dict(checkpoint="pretrained/lambda_resnet152.pth")),
)
