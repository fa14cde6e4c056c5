# FCN on SE-ResNet-50 on Cityscapes: the squeeze-excitation of fcn_lambda_r50_cityscapes_80k.py's
# comparison, with SENet's ratio (arXiv 1709.01507).
_base_ = "./fcn_lambda_r50_cityscapes_80k.py"
model = dict(backbone=dict(lambda_stages=(), se_ratio=1 / 16))
