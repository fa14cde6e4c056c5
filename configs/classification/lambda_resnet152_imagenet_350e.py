# LambdaResNet-152 on ImageNet-1k with the paper's hybrid placement and squeeze-excitation. No
# top-1 of this model at 224x224 was published.
_base_ = "./lambda_resnet50_imagenet_350e.py"
model = dict(backbone=dict(depth=152))
