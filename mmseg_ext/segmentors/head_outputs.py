"""What the outputs of a decode head's forward are: its prediction, and the maps that get a loss.

mmsegmentation's heads resize inside `predict_by_feat` and `loss_by_feat`, so that nothing outside
sees the logits before. What is listed here is known to be the resize of forward's output, and the
same resize followed by the losses of `BaseDecodeHead`. A head of one's own that overrides `predict`
or `loss_by_feat` says the same by a method `named_logits(outputs) -> dict[str, Tensor]`: the maps
(B, C, h, w) that each get `BaseDecodeHead`'s losses, under their names in the log ('' for none);
the first is the prediction.
"""

from mmseg.models.decode_heads import DAHead, EncHead
from mmseg.models.decode_heads.cascade_decode_head import BaseCascadeDecodeHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor, nn

_FIRST_OUTPUT = (DAHead.predict, EncHead.predict)


def check_prediction(head: nn.Module) -> None:
    """Raise a ValueError unless the head's prediction is the resize of its forward."""
    kind = type(head)
    cascade = isinstance(head, BaseCascadeDecodeHead)
    if (
        isinstance(head, BaseDecodeHead)
        and not cascade
        and kind.predict_by_feat is BaseDecodeHead.predict_by_feat
        and (kind.predict in (BaseDecodeHead.predict, *_FIRST_OUTPUT) or _names(head, "predict"))
    ):
        return
    instead = "type='CascadeEncoderDecoder'" if cascade else "type='EncoderDecoder'"
    raise ValueError(
        f"decode_head: the prediction of {kind.__name__} is not known to be the resize of its "
        f"forward; use {instead}, which resizes whole maps (docs/class_maps.md)"
    )


def prediction(head: BaseDecodeHead, outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The logits (B, C, h, w) that `predict` would resize, for a head of `check_prediction`."""
    if type(head).predict is BaseDecodeHead.predict:
        return outputs
    if type(head).predict in _FIRST_OUTPUT:
        return outputs if isinstance(outputs, Tensor) else outputs[0]
    return next(iter(head.named_logits(outputs).values()))


def by_base_losses(head: nn.Module) -> bool:
    """Each of the head's maps gets `BaseDecodeHead.loss_by_feat`, and there is no other loss."""
    kind = type(head)
    return (
        isinstance(head, BaseDecodeHead)
        and kind.loss is BaseDecodeHead.loss
        and (
            kind.loss_by_feat in (BaseDecodeHead.loss_by_feat, DAHead.loss_by_feat)
            or _names(head, "loss_by_feat")
        )
    )


def loss_logits(head: BaseDecodeHead, outputs: Tensor | tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Name -> logits (B, C, h, w) of a head of `by_base_losses`."""
    if type(head).loss_by_feat is BaseDecodeHead.loss_by_feat:
        return {"": outputs}
    if type(head).loss_by_feat is DAHead.loss_by_feat:
        return dict(zip(("pam_cam", "pam", "cam"), outputs, strict=True))
    return head.named_logits(outputs)


def _names(head: BaseDecodeHead, method: str) -> bool:
    """`named_logits` speaks for `method`: no later class overrides that alone."""
    for kind in type(head).__mro__:
        if "named_logits" in vars(kind):
            return True
        if method in vars(kind):
            return False
    return False
