"""mmsegmentation's `EncoderDecoder` without maps of classes times full resolution.

No paper. The config fields, labels and losses equal mmsegmentation 1.2.2's `EncoderDecoder`
(`mmseg/models/segmentors/encoder_decoder.py`, `base.py`).

Deviations:

- Without `test_cfg.keep_logits=True` the `seg_logits` of a prediction are computed when they are
  read, and copies of the prediction have none.
- A head whose prediction is not a resize, and sliding windows with gaps, are errors.
- Scores are computed in float32 or float64, also under autocast.

mmsegmentation's heads resize inside `predict_by_feat` and `loss_by_feat`, so nothing outside sees
the logits before. This module lists the methods of mmsegmentation that only resize the outputs of
`forward` and apply `BaseDecodeHead`'s losses. A head with other methods can declare the same with a
method `named_logits(outputs) -> dict[str, Tensor]`. It returns the maps (B, C, h, w) that get
`BaseDecodeHead`'s losses, by their prefix in the log ('' for none). The first is the prediction.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from mmengine.structures import PixelData
from mmseg.models import EncoderDecoder
from mmseg.models.decode_heads import DAHead, EncHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from mmseg.utils import add_prefix
from torch import Tensor, nn

from mmseg_ext.errors import LaunchError
from mmseg_ext.images.seen import Span, window_spans
from mmseg_ext.segmentors.fast_lovasz import use_fast_lovasz
from mmseg_ext.segmentors.head_errors import explain_loss_error
from mmseg_ext.segmentors.mixed_sizes import by_size
from mmseg_ext.segmentors.score_maps import (
    AxisSteps,
    DeferredLogits,
    Merge,
    ScoreMap,
    axis_map,
    viewed,
)
from mmseg_ext.segmentors.strip_losses import can_use_strips, strip_losses
from mmseg_ext.segmentors.unlabeled_images import mask_unlabeled
from mmseg_ext.upstream import set_hidden_logits

# Methods that only resize, and methods that apply `BaseDecodeHead.loss_by_feat` to each map.
_KNOWN = {
    "predict": (BaseDecodeHead.predict, DAHead.predict, EncHead.predict),
    "predict_by_feat": (BaseDecodeHead.predict_by_feat,),
    "loss": (BaseDecodeHead.loss,),
    "loss_by_feat": (BaseDecodeHead.loss_by_feat, DAHead.loss_by_feat),
}

# Methods between images and labels, which strips replace.
_REPLACED = ("encode_decode", "forward", "inference", "postprocess_result", "predict")
_REPLACED += ("slide_inference", "test_step", "whole_inference")


def predicts_by_resize(head: nn.Module) -> bool:
    """Return whether the head's prediction is the resize of its forward."""
    return _is_known(head, "predict", "predict_by_feat")


def prediction(head: Any, outputs: Any) -> Tensor:
    """Return the logits (B, C, h, w) that `predict` would resize, if it `predicts_by_resize`.

    `outputs` is the result of the head's forward: a tensor, or a tuple of tensors.
    """
    if hasattr(head, "named_logits"):
        return next(iter(head.named_logits(outputs).values()))
    return outputs if isinstance(outputs, Tensor) else outputs[0]


def _is_known(head: nn.Module, *methods: str) -> bool:
    """Return whether the methods are in `_KNOWN` or declared, and not set on the instance.

    Distillation and reweighting set methods on instances.
    """
    if not isinstance(head, BaseDecodeHead):
        return False
    for method in methods:
        if method in vars(head):
            return False
        if getattr(type(head), method) in _KNOWN[method]:
            continue
        for kind in type(head).__mro__:
            if "named_logits" in vars(kind):  # which describes the methods of the classes below
                break
            if method in vars(kind):
                return False
        else:
            return False
    return True


@MODELS.register_module()
class StripEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` that turns logits into labels and losses in strips of rows.

    The scores of an image never exist at once: strips of a few megabytes are resized from the
    head's logits, turned into labels and overwritten. `predict` returns `pred_sem_seg` (1, H, W).
    mmseg's `seg_logits` (C, H, W) is computed when it is read, or before with
    `test_cfg.keep_logits=True`.

    Methods `predict`, `predict_by_feat`, `loss` and `loss_by_feat` that are set on the instance of
    a head are called as in `EncoderDecoder`, with maps at full resolution.

    Args:
        kwargs: `EncoderDecoder`'s config fields. The decode head is a `BaseDecodeHead` whose
            prediction is the resize of its forward.

    Raises:
        ValueError: for a decode head that predicts in another way, and for a `test_cfg` with
            another mode or with windows that leave gaps.
    """

    decode_head: BaseDecodeHead
    test_cfg: dict | None

    def __init__(self, backbone: dict, decode_head: dict, **kwargs):
        super().__init__(backbone, decode_head, **kwargs)
        mask_unlabeled(self)
        use_fast_lovasz(self)
        if not predicts_by_resize(self.decode_head):
            raise ValueError(
                f"decode_head: the prediction of {type(self.decode_head).__name__} may be more "
                "than the resize of its forward; use type='EncoderDecoder', or "
                "'CascadeEncoderDecoder' for a cascade (docs/class_maps.md)"
            )
        if (self.test_cfg or {}).get("mode") is not None:
            self._windows((1, 1))  # mmsegmentation refuses wrong ones at the first image

    def _decode_head_forward_train(
        self, inputs: list[Tensor], data_samples: list[SegDataSample]
    ) -> dict[str, Tensor]:
        losses = self._head_losses("decode_head", self.decode_head, inputs, data_samples)
        return add_prefix(losses, "decode")

    def _auxiliary_head_forward_train(
        self, inputs: list[Tensor], data_samples: list[SegDataSample]
    ) -> dict[str, Tensor]:
        head = self.auxiliary_head
        if not isinstance(head, nn.ModuleList):
            losses = self._head_losses("auxiliary_head", head, inputs, data_samples)
            return add_prefix(losses, "aux")
        losses = {}
        for i, one in enumerate(head):
            found = self._head_losses(f"auxiliary_head.{i}", one, inputs, data_samples)
            losses |= add_prefix(found, f"aux_{i}")
        return losses

    def _head_losses(
        self, key: str, head: Any, inputs: list[Tensor], data_samples: list[SegDataSample]
    ) -> dict[str, Tensor]:
        """Return `head.loss`, in strips if they are known to give the same."""
        try:
            if not _is_known(head, "loss", "loss_by_feat"):
                return head.loss(inputs, data_samples, self.train_cfg)
            outputs = head.forward(inputs)
            maps: dict[str, Tensor] = {"": outputs}  # (B, C, h, w), by the prefix of their losses
            if hasattr(head, "named_logits"):
                maps = head.named_logits(outputs)
            elif type(head).loss_by_feat is DAHead.loss_by_feat:
                maps = dict(zip(("pam_cam", "pam", "cam"), outputs, strict=True))
            if can_use_strips(head):
                return strip_losses(head, maps, data_samples)
            losses = {}
            for prefix, logits in maps.items():
                found = BaseDecodeHead.loss_by_feat(head, logits, data_samples)
                if prefix:
                    found = add_prefix(found, prefix)
                losses |= found
            return losses
        except Exception as error:
            if isinstance(head, BaseDecodeHead):
                explain_loss_error(f"model.{key}", head, inputs, data_samples, error)
            raise

    def predict(
        self, inputs: Tensor, data_samples: list[SegDataSample] | None = None
    ) -> Sequence[SegDataSample]:
        """Return label maps of images (B, 3, H, W), each with its `ori_shape`."""
        if not self.predicts_in_strips():
            return super().predict(inputs, data_samples)
        maps = self.score_maps(inputs, data_samples)
        if data_samples is None:
            data_samples = [SegDataSample() for _ in maps]
        merge: Merge = "probs" if self.out_channels == 1 else "logits"
        for sample, scores in zip(data_samples, maps, strict=True):
            self.set_prediction(sample, [scores], merge)
        return data_samples

    def val_step(self, data: Any) -> Sequence[SegDataSample]:
        """Predict a batch of images, also of different sizes."""
        return by_size(super().val_step, data)

    def test_step(self, data: Any) -> Sequence[SegDataSample]:
        """Predict a batch of images, also of different sizes."""
        return by_size(super().test_step, data)

    def predicts_in_strips(self) -> bool:
        """Return whether no subclass or instance has its own methods between images and labels."""
        for name in _REPLACED:
            inherited = getattr(type(self), name) is getattr(StripEncoderDecoder, name)
            if name in vars(self) or not inherited:
                return False
        return predicts_by_resize(self.decode_head)

    def network_logits(self, inputs: Tensor) -> Tensor:
        """Return the logits (B, C, h, w) of a window (B, 3, H, W), which are not resized."""
        return prediction(self.decode_head, self.decode_head.forward(self.extract_feat(inputs)))

    def score_maps(
        self, inputs: Tensor, data_samples: Sequence[SegDataSample] | None
    ) -> list[ScoreMap]:
        """Run the network, and return the scores of each image, not resized yet."""
        size = (inputs.shape[2], inputs.shape[3])
        metas = [{"ori_shape": size}] * len(inputs)
        if data_samples is not None:
            metas = [sample.metainfo for sample in data_samples]
        steps = [_steps(meta, size) for meta in metas]
        all_rows, all_columns = self._windows(size)
        aligned = self.align_corners

        maps = [ScoreMap() for _ in metas]
        for rows, columns in product(all_rows, all_columns):
            batch = self.network_logits(inputs[:, :, slice(*rows), slice(*columns)])
            height, width = batch.shape[2:]
            for scores, logits, (vertical, horizontal) in zip(maps, batch, steps, strict=True):
                scores.add(
                    logits,
                    axis_map(viewed, height, rows, all_rows, vertical, aligned, like=logits),
                    axis_map(viewed, width, columns, all_columns, horizontal, aligned, like=logits),
                )
        return maps

    def set_prediction(self, sample: SegDataSample, views: list[ScoreMap], merge: Merge) -> None:
        """Set the labels of the merged views on `sample`, and the scores or how to compute them."""
        keep = (self.test_cfg or {}).get("keep_logits", False)
        logits = DeferredLogits(views, merge)
        # Heads that do not call BaseDecodeHead's __init__ have no threshold.
        threshold = getattr(self.decode_head, "threshold", None)
        fields = logits.labels_and_scores(threshold, keep)
        if "seg_logits" in sample:  # from an earlier prediction
            del sample.seg_logits
        sample.set_data({name: PixelData(data=data) for name, data in fields.items()})
        if not keep:
            set_hidden_logits(sample, logits)

    def _windows(self, size: tuple[int, int]) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
        """Return the rows and the columns of the windows."""
        test_cfg = self.test_cfg or {}
        mode = test_cfg.get("mode")
        crop_size = test_cfg.get("crop_size")
        stride = test_cfg.get("stride")
        if mode == "whole":
            return ((0, size[0]),), ((0, size[1]),)
        if mode != "slide":
            raise LaunchError(f"model.test_cfg.mode={mode!r}: unknown; set 'whole' or 'slide'")
        match crop_size, stride:
            case [int(height), int(width)], [int(down), int(across)]:
                if 0 < down <= height and 0 < across <= width:
                    rows = window_spans(size[0], height, down)
                    return rows, window_spans(size[1], width, across)
        raise LaunchError(
            f"model.test_cfg.stride={stride!r}: mode='slide' needs (height, width), not larger "
            f"than crop_size={crop_size!r}, which is (height, width), too"
        )


def _steps(meta: dict, size: tuple[int, int]) -> tuple[AxisSteps, AxisSteps]:
    """Return the steps of the rows and of the columns, from the metadata of an image."""
    padding = meta.get("img_padding_size", meta.get("padding_size", (0, 0, 0, 0)))
    left, right, top, bottom = padding
    direction = None
    if meta.get("flip"):
        direction = meta.get("flip_direction")
        if direction not in ("horizontal", "vertical"):
            raise ValueError(f"flip_direction={direction!r}: must be 'horizontal' or 'vertical'")
    height, width = meta["ori_shape"][:2]
    rows = AxisSteps(size[0], (top, bottom), direction == "vertical", height)
    return rows, AxisSteps(size[1], (left, right), direction == "horizontal", width)
