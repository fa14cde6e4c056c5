"""The head of mmpretrain's `ImageClassifier` for a backbone that is the published classifier.

With `num_classes` a backbone gives logits (B, num_classes), and mmpretrain's heads take the last of
a tuple of maps. The configs under configs/classification import this module; `mmseg_ext` does not.
"""

from torch import Tensor

from mmseg_ext.environment import require_package

require_package("mmpretrain", extra="cls")

from mmpretrain.models import ClsHead  # noqa: E402
from mmpretrain.registry import MODELS  # noqa: E402


@MODELS.register_module()
class LogitsHead(ClsHead):
    """`ClsHead` on logits (B, num_classes) as they come; the loss and the metrics are its own."""

    def pre_logits(self, feats: Tensor) -> Tensor:
        return feats
