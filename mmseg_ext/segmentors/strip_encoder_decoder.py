"""mmsegmentation's `EncoderDecoder` without maps of classes times full resolution.

No paper; the config fields, the labels and the losses are those of mmsegmentation 1.2.2's
`EncoderDecoder` (`mmseg/models/segmentors/encoder_decoder.py`, `base.py`).

Deviations: a prediction has no `seg_logits` unless `test_cfg.keep_logits` asks for them; a head
whose prediction is no resize, sliding windows with gaps, and metadata that contradict a size are
errors; scores are computed in float32 or better under autocast, too.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product

from mmengine.structures import PixelData
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from mmseg.utils import add_prefix
from torch import Tensor, nn

from mmseg_ext.segmentors.head_outputs import (
    by_base_losses,
    check_prediction,
    loss_logits,
    prediction,
)
from mmseg_ext.segmentors.resize_maps import AxisMap, AxisSteps, Span, view_map, window_spans
from mmseg_ext.segmentors.score_maps import Merge, ScoreMap, merged_prediction
from mmseg_ext.segmentors.strip_losses import strip_losses, takes_strips


class LabelSample(SegDataSample):
    """A `SegDataSample` whose prediction may have labels alone."""

    @SegDataSample.seg_logits.getter
    def seg_logits(self) -> PixelData:
        """The scores (C, H, W).

        Raises:
            AttributeError: if the segmentor did not keep them.
        """
        if "seg_logits" not in self:
            raise AttributeError(
                "this prediction has no seg_logits: StripEncoderDecoder keeps them only with "
                "test_cfg.keep_logits=True"
            )
        return self._seg_logits


@MODELS.register_module()
class StripEncoderDecoder(EncoderDecoder):
    """`EncoderDecoder` that turns logits into labels and losses by strips of rows.

    The scores of an image are never held: the head's own logits are kept, and strips of a few
    megabytes are resized, turned into labels and overwritten. `predict` gives `pred_sem_seg`
    (1, H, W); with `test_cfg.keep_logits=True` also mmseg's `seg_logits` (C, H, W).

    Args:
        kwargs: `EncoderDecoder`'s config fields. The decode head is a `BaseDecodeHead` whose
            prediction is the resize of its forward (`head_outputs`).

    Raises:
        ValueError: for a decode head that predicts otherwise, for a list of them, and for a
            `test_cfg` whose windows leave gaps.
    """

    def __init__(self, backbone: dict, decode_head: dict, **kwargs):
        if isinstance(decode_head, Sequence):
            raise ValueError(
                "decode_head: a list of heads belongs to type='CascadeEncoderDecoder'; "
                "StripEncoderDecoder has one (further heads go to auxiliary_head)"
            )
        super().__init__(backbone, decode_head, **kwargs)
        check_prediction(self.decode_head)
        _check_test_cfg(self.test_cfg)

    def _decode_head_forward_train(
        self, inputs: list[Tensor], data_samples: list[SegDataSample]
    ) -> dict[str, Tensor]:
        return add_prefix(self._head_losses(self.decode_head, inputs, data_samples), "decode")

    def _auxiliary_head_forward_train(
        self, inputs: list[Tensor], data_samples: list[SegDataSample]
    ) -> dict[str, Tensor]:
        if not isinstance(self.auxiliary_head, nn.ModuleList):
            return add_prefix(self._head_losses(self.auxiliary_head, inputs, data_samples), "aux")
        losses = {}
        for i, head in enumerate(self.auxiliary_head):
            losses |= add_prefix(self._head_losses(head, inputs, data_samples), f"aux_{i}")
        return losses

    def _head_losses(
        self, head: nn.Module, inputs: list[Tensor], data_samples: list[SegDataSample]
    ) -> dict[str, Tensor]:
        """`head.loss`, by strips where these are known to give the same."""
        if not (by_base_losses(head) and takes_strips(head)):
            return head.loss(inputs, data_samples, self.train_cfg)
        losses = {}
        for name, logits in loss_logits(head, head.forward(inputs)).items():
            one = strip_losses(head, logits, data_samples)
            losses |= add_prefix(one, name) if name else one
        return losses

    def predict(
        self, inputs: Tensor, data_samples: list[SegDataSample] | None = None
    ) -> list[SegDataSample]:
        """Label maps of images (B, 3, H, W), each at its `ori_shape`.

        Raises:
            ValueError: for metadata that contradict the size of `inputs`.
        """
        maps = self.score_maps(inputs, data_samples)
        if data_samples is None:
            data_samples = [SegDataSample() for _ in maps]
        for sample, scores in zip(data_samples, maps, strict=True):
            self.set_prediction(sample, [scores], "probs" if self.out_channels == 1 else "logits")
        return data_samples

    def score_maps(
        self, inputs: Tensor, data_samples: Sequence[SegDataSample] | None
    ) -> list[ScoreMap]:
        """Run the network: for each image its scores, of which none is resized yet."""
        size = tuple(inputs.shape[2:])
        metas = [{"ori_shape": size}] * len(inputs)
        if data_samples is not None:
            metas = [sample.metainfo for sample in data_samples]
        steps = [_steps(meta, size) for meta in metas]
        spans = self._windows(size)

        @cache  # the images of a batch and the windows of a row or a column share theirs
        def axis_map(axis: int, low: int, window: Span, axis_steps: AxisSteps) -> AxisMap:
            return view_map(low, window, spans[axis], axis_steps, self.align_corners, batch)

        maps = [ScoreMap() for _ in metas]
        for rows, columns in product(*spans):
            features = self.extract_feat(inputs[:, :, slice(*rows), slice(*columns)])
            batch = prediction(self.decode_head, self.decode_head.forward(features))
            height, width = batch.shape[2:]
            for scores, logits, (vertical, horizontal) in zip(maps, batch, steps, strict=True):
                scores.add(
                    logits,
                    axis_map(0, height, rows, vertical),
                    axis_map(1, width, columns, horizontal),
                )
        return maps

    def set_prediction(self, sample: SegDataSample, views: list[ScoreMap], merge: Merge) -> None:
        """Give `sample` the labels of the merged views, and the merged scores if they are kept."""
        keep = (self.test_cfg or {}).get("keep_logits", False)
        # Some heads do not call BaseDecodeHead's __init__ and have no threshold.
        threshold = self.decode_head.threshold if self.out_channels == 1 else None
        fields = merged_prediction(views, merge, threshold, keep)
        if "seg_logits" in sample:  # of an earlier prediction
            del sample.seg_logits
        object.__setattr__(sample, "__class__", LabelSample)
        sample.set_data({name: PixelData(data=data) for name, data in fields.items()})

    def _windows(self, size: tuple[int, int]) -> list[list[Span]]:
        """The windows' rows and their columns."""
        test_cfg = self.test_cfg or {}
        if test_cfg.get("mode", "whole") == "whole":
            return [[(0, length)] for length in size]
        windows = zip(size, test_cfg["crop_size"], test_cfg["stride"], strict=True)
        return [window_spans(*axis) for axis in windows]


def _check_test_cfg(test_cfg: dict | None) -> None:
    if (test_cfg or {}).get("mode", "whole") == "whole":
        return
    crop_size, stride = tuple(test_cfg["crop_size"]), tuple(test_cfg["stride"])
    if any(step > length for step, length in zip(stride, crop_size, strict=True)):
        raise ValueError(
            f"test_cfg.stride {stride} is larger than crop_size {crop_size}: windows would leave "
            "gaps"
        )


def _steps(meta: dict, size: tuple[int, int]) -> tuple[AxisSteps, AxisSteps]:
    """What the metadata of an image say about the rows and the columns of the input."""
    for field in ("pad_shape", "img_shape"):
        if field in meta:
            if tuple(meta[field][:2]) != size:
                raise ValueError(f"{field} is {tuple(meta[field][:2])}, the input is {size}")
            break
    field = "img_padding_size" if "img_padding_size" in meta else "padding_size"
    left, right, top, bottom = meta.get(field, (0, 0, 0, 0))
    padding = ((top, bottom), (left, right))
    if any(sum(pair) >= n for pair, n in zip(padding, size, strict=True)):
        raise ValueError(f"{field} {left, right, top, bottom} does not fit an input of {size}")
    direction = meta.get("flip_direction") if meta.get("flip") else None
    if meta.get("flip") and direction not in ("horizontal", "vertical"):
        raise ValueError(f"flip_direction must be 'horizontal' or 'vertical', not {direction!r}")
    flips = (direction == "vertical", direction == "horizontal")
    if "ori_shape" not in meta:
        raise ValueError("ori_shape: the metadata have none (PackSegInputs.meta_keys)")
    axes = zip(size, padding, flips, meta["ori_shape"][:2], strict=True)
    return tuple(AxisSteps(*axis) for axis in axes)
