# Mask R-CNN with LambdaResNet and FPN. Of the paper's detector (arXiv 2102.08602) only the table is
# known to us: Mask R-CNN at 1024x1024 with FPN. Heads, anchors and thresholds are mmdetection's.
_base_ = "./mask_rcnn_fpn.py"
model = dict(
    # No weights are published: an ImageNet classifier of ../../classification comes first.
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
