"""The outputs of a decode head: its prediction, and the maps that get a loss.

mmsegmentation's heads resize inside `predict_by_feat` and `loss_by_feat`, so nothing outside sees
the logits before. `StripEncoderDecoder` needs them. This module lists the methods of
mmsegmentation that only resize the outputs of `forward` and apply `BaseDecodeHead`'s losses. A head
that overrides `predict` or `loss_by_feat` can declare the same with a method
`named_logits(outputs) -> dict[str, Tensor]`. It returns the maps (B, C, h, w) that get
`BaseDecodeHead`'s losses, by their prefix in the log ('' for none). The first is the prediction.
"""

from mmseg.models.decode_heads import DAHead, EncHead
from mmseg.models.decode_heads.cascade_decode_head import BaseCascadeDecodeHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

_PREDICT_FIRST_OUTPUT = (DAHead.predict, EncHead.predict)


def predicts_by_resize(head: nn.Module) -> bool:
    """Return whether the head's prediction is the resize of its forward."""
    kind = type(head)
    return (
        isinstance(head, BaseDecodeHead)
        and not isinstance(head, BaseCascadeDecodeHead)
        and not _replaced(head, "predict", "predict_by_feat")
        and kind.predict_by_feat is BaseDecodeHead.predict_by_feat
        and (
            kind.predict in (BaseDecodeHead.predict, *_PREDICT_FIRST_OUTPUT)
            or _declared(head, "predict")
        )
    )


def prediction(head: BaseDecodeHead, outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Return the logits (B, C, h, w) that `predict` would resize, if it `predicts_by_resize`."""
    if type(head).predict is BaseDecodeHead.predict:
        return outputs
    if type(head).predict in _PREDICT_FIRST_OUTPUT:
        return outputs if isinstance(outputs, Tensor) else outputs[0]
    return next(iter(head.named_logits(outputs).values()))


def has_base_losses(head: nn.Module) -> bool:
    """Return whether the head's loss is `BaseDecodeHead.loss_by_feat` of each of its maps."""
    kind = type(head)
    return (
        isinstance(head, BaseDecodeHead)
        and not _replaced(head, "loss", "loss_by_feat")
        and kind.loss is BaseDecodeHead.loss
        and (
            kind.loss_by_feat in (BaseDecodeHead.loss_by_feat, DAHead.loss_by_feat)
            or _declared(head, "loss_by_feat")
        )
    )


def loss_logits(head: BaseDecodeHead, outputs: Tensor | tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return prefix -> logits (B, C, h, w) of a head that `has_base_losses`."""
    if type(head).loss_by_feat is BaseDecodeHead.loss_by_feat:
        return {"": outputs}
    if type(head).loss_by_feat is DAHead.loss_by_feat:
        return dict(zip(("pam_cam", "pam", "cam"), outputs, strict=True))
    return head.named_logits(outputs)


def _replaced(head: nn.Module, *methods: str) -> bool:
    """Return whether a method was set on the instance, as distillation and reweighting do."""
    return any(method in vars(head) for method in methods)


def _declared(head: BaseDecodeHead, method: str) -> bool:
    """Return whether `named_logits` describes `method`: no subclass overrides only `method`."""
    for kind in type(head).__mro__:
        if "named_logits" in vars(kind):
            return True
        if method in vars(kind):
            return False
    return False
