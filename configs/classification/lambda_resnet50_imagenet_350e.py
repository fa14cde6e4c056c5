# LambdaResNet-50 on ImageNet-1k with the paper's hybrid placement and squeeze-excitation. No
# top-1 of this model at 224x224 was published.
_base_ = [
    "./_base_/classifier.py",
    "./_base_/imagenet_224.py",
    "./_base_/lambda_350e.py",
    "./_base_/default_runtime.py",
]
model = dict(
    backbone=dict(
        type="LambdaResNet",
        depth=50,
        placement="hybrid",
        se_ratio=1 / 16,
        norm_cfg=dict(type="SyncBN", requires_grad=True),
    ),
)
