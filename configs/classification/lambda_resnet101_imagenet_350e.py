# LambdaResNet-101 on ImageNet-1k with the paper's hybrid placement and squeeze-excitation. We know
# no published top-1 of this model at 224x224.
_base_ = "./lambda_resnet50_imagenet_350e.py"
model = dict(backbone=dict(depth=101))
