# Mask R-CNN with LambdaResNet and FPN. The paper (arXiv 2102.08602) gives only a table: Mask R-CNN
# with FPN at 1024x1024. Heads, anchors and thresholds are mmdetection's.
_base_ = "./mask_rcnn_fpn.py"
model = dict(
    # No weights are published: first train the ImageNet classifier of ../../classification.
    backbone=dict(
        type="LambdaResNet",
        depth=101,
        placement="hybrid",
        se_ratio=1 / 16,
        out_indices=(0, 1, 2, 3),
        norm_cfg=dict(type="SyncBN", requires_grad=True),
        init_cfg=dict(type="Pretrained", checkpoint="pretrained/lambda_resnet101.pth"),
    ),
    neck=dict(in_channels=[256, 512, 1024, 2048]),
)
