"""A head for mmpretrain's `ImageClassifier` whose backbone is the published classifier.

With `num_classes` a backbone returns logits (B, num_classes), but mmpretrain's heads expect a tuple
of feature maps. Only the configs in configs/classification import this module.
"""

from torch import Tensor

from mmseg_ext.environment import require_package

require_package("mmpretrain", extra="cls")

from mmpretrain.models import ClsHead  # noqa: E402
from mmpretrain.registry import MODELS  # noqa: E402


@MODELS.register_module()
class LogitsHead(ClsHead):
    """`ClsHead` that uses the backbone's logits (B, num_classes) unchanged."""

    def pre_logits(self, feats: Tensor) -> Tensor:
        """Return `feats` (B, num_classes) unchanged."""
        return feats
