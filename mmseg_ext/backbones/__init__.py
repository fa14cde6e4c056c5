"""The backbones; importing this package registers them in mmseg's MODELS."""

from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.backbones.eamlp import EAMLP
from mmseg_ext.backbones.lambda_resnet import LambdaResNet
from mmseg_ext.backbones.rmt import RMT

__all__ = ["EAMLP", "RMT", "DeepViT", "LambdaResNet"]
