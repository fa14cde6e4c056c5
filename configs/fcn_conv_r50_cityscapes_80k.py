# FCN on ResNet-50 on Cityscapes: the convolutions of fcn_lambda_r50_cityscapes_80k.py's comparison.
_base_ = "./fcn_lambda_r50_cityscapes_80k.py"
model = dict(backbone=dict(lambda_stages=()))
