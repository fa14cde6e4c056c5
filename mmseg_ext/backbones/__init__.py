"""The backbones; importing this package registers them.

They go into mmengine's root registry, where mmdetection and mmpretrain find them by their names,
and into mmsegmentation's where it is installed, so that `mmseg.RMT` names them everywhere, too.

Raises:
    StackError: without mmengine or mmcv, in one line with the remedy.
"""

from mmseg_ext.environment import BASE, check_stack, stack_problem

check_stack(BASE)

from mmengine.registry import MODELS

from mmseg_ext.backbones.deepvit import DeepViT
from mmseg_ext.backbones.eamlp import EAMLP
from mmseg_ext.backbones.lambda_resnet import LambdaResNet
from mmseg_ext.backbones.rmt import RMT

__all__ = ["EAMLP", "RMT", "DeepViT", "LambdaResNet"]

registries = [MODELS]
if stack_problem() is None:
    from mmseg.registry import MODELS as MMSEG_MODELS

    registries.append(MMSEG_MODELS)
for registry in registries:
    for backbone in (DeepViT, EAMLP, LambdaResNet, RMT):
        registry.register_module(module=backbone, force=True)  # the package may be reloaded
