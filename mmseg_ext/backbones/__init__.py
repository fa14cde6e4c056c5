"""The backbones. Importing this package registers them.

mmengine's root registry makes them available to mmdetection and mmpretrain by name. If
mmsegmentation is installed, its registry has them, too, and `mmseg.RMT` works in every package.

Raises:
    StackError: if mmengine or mmcv is missing or too old.
"""

from mmseg_ext.environment import BASE, check_stack, stack_problem

check_stack(BASE)

from mmengine.registry import MODELS

from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.backbones.eamlp import EAMLP
from mmseg_ext.backbones.efficientnet_lite import EfficientNetLite
from mmseg_ext.backbones.lambda_resnet import LambdaResNet
from mmseg_ext.backbones.rmt import RMT
from mmseg_ext.backbones.timm_encoder import TimmEncoder

__all__ = ["EAMLP", "RMT", "DeepViT", "EfficientNetLite", "LambdaResNet", "TimmEncoder"]

registries = [MODELS]
if stack_problem() is None:
    from mmseg.registry import MODELS as MMSEG_MODELS

    registries.append(MMSEG_MODELS)
for registry in registries:
    for backbone in (DeepViT, EAMLP, EfficientNetLite, LambdaResNet, RMT, TimmEncoder):
        registry.register_module(module=backbone, force=True)  # for a reload of the package
