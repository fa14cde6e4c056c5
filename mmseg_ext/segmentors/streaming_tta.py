"""Test-time augmentation that holds one map, however many views there are, or none.

mmsegmentation's `SegTTAModel` keeps the full-resolution logits of all views (12 for six scales and
flips) and merges them at the end. The merge is a sum. With `StripEncoderDecoder` the views' own
logits, at the head's resolution, are kept and merged by strips of rows; no full-resolution map is
made. With mmsegmentation's segmentors each view is added to one running map and dropped.

`merge='probs'` is `SegTTAModel`'s rule, the mean of the views' softmax. `merge='logits'` is the sum
of raw logits with which EANet (arXiv 2105.02358) was tested: MenghaoGuo/EANet, `test_torch.py`;
the views that go with it are the `tta_pipeline` of `configs/_base_/datasets/voc_published.py`.

Deviation from `SegTTAModel`: with one output channel a view's map is its foreground probability,
and the mean of these is held against the head's threshold, as for a single view. mmsegmentation
1.2.2 to 1.4.2 applies the sigmoid a second time there, which lifts every pixel over 0.5.
"""

from collections.abc import Iterator, Sequence
from typing import get_args

import torch
from mmengine.model import BaseTTAModel
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from torch import Tensor

from mmseg_ext.layers.precision import full_precision
from mmseg_ext.segmentors.score_maps import Merge
from mmseg_ext.segmentors.strip_encoder_decoder import StripEncoderDecoder


@MODELS.register_module()
class StreamingSegTTAModel(BaseTTAModel):
    """The merged prediction of an image's views, in whole and in slide mode.

    The merged sample is the first view's, with `pred_sem_seg` (1, H, W) and, as `seg_logits`, the
    merged map (C, H, W): the mean of the views' probabilities, or the sum of their logits, in
    float32 or better. `StripEncoderDecoder` leaves `seg_logits` out unless its
    `test_cfg.keep_logits` is True.

    Raises:
        ValueError: for another `merge`, or for `merge='logits'` with a segmentor of one output
            channel, which returns probabilities.
    """

    def __init__(self, module, merge: Merge = "probs", data_preprocessor=None):
        if merge not in get_args(Merge):
            raise ValueError(f"merge must be one of {get_args(Merge)}, got {merge!r}")
        super().__init__(module, data_preprocessor)
        if merge == "logits" and self.module.out_channels == 1:
            raise ValueError("merge='logits' needs a segmentor with more than one output channel")
        self.merge = merge

    @torch.no_grad()
    def test_step(self, data: dict | Sequence) -> list[SegDataSample]:
        """Merged predictions of a batch of images.

        `data` is what `TestTimeAug` and the data loader make: per field, a list over views of
        lists over the batch.
        """
        if isinstance(self.module, StripEncoderDecoder):
            return self._merged_by_strips(_views(data))
        return self._merged(self.module.test_step(view) for view in _views(data))

    def merge_preds(self, data_samples_list: list[Sequence[SegDataSample]]) -> list[SegDataSample]:
        """Merge predictions that exist already: a list over images of lists over views.

        Raises:
            ValueError: for predictions without `seg_logits`.
        """
        return self._merged(zip(*data_samples_list, strict=True))

    def _merged_by_strips(self, views: Iterator[dict | list]) -> list[SegDataSample]:
        merged: list[SegDataSample] = []
        maps = []  # per view, the scores of each image
        for view in views:
            batch = self.module.data_preprocessor(view, False)
            maps.append(self.module.score_maps(batch["inputs"], batch["data_samples"]))
            merged = merged or batch["data_samples"]
        for sample, image in zip(merged, zip(*maps, strict=True), strict=True):
            self.module.set_prediction(sample, image, self.merge)
        return merged

    def _merged(self, views: Iterator[Sequence[SegDataSample]]) -> list[SegDataSample]:
        merged: list[SegDataSample] = []
        maps: list[Tensor] = []
        count = 0
        for samples in views:
            merged = merged or list(samples)
            self._add(maps, samples)
            count += 1
            del samples  # or the next view is predicted while this one is held
        for sample, total in zip(merged, maps, strict=True):
            if self.merge == "probs":
                total /= count
            fields = {"seg_logits": total, "pred_sem_seg": self._labels(total)}
            sample.set_data({name: PixelData(data=data) for name, data in fields.items()})
        return merged

    def _add(self, maps: list[Tensor], samples: Sequence[SegDataSample]) -> None:
        """Add one view of each image to the running maps (C, H, W), which the first view makes.

        The samples give up their own maps: nothing of a view outlives this call.
        """
        first = not maps
        for i, sample in enumerate(samples):
            if "seg_logits" not in sample:
                raise ValueError("a prediction has no seg_logits: set test_cfg.keep_logits=True")
            logits = sample.seg_logits.data
            del sample.seg_logits
            if "pred_sem_seg" in sample:
                del sample.pred_sem_seg
            summand = self._summand(logits)
            if first:
                maps.append(summand.clone() if summand is logits else summand)
            else:
                maps[i] += summand

    def _summand(self, logits: Tensor) -> Tensor:
        logits = logits.to(full_precision(logits.dtype))
        if self.merge == "logits" or self.module.out_channels == 1:
            return logits
        return logits.softmax(dim=0)

    def _labels(self, merged: Tensor) -> Tensor:
        if self.module.out_channels == 1:
            return (merged > self.module.decode_head.threshold).to(merged)  # 1, H, W
        return merged.argmax(dim=0, keepdim=True)  # 1, H, W


def _views(data: dict | Sequence) -> Iterator[dict | list]:
    """The batch of each view in turn."""
    if isinstance(data, dict):
        return (dict(zip(data, view, strict=True)) for view in zip(*data.values(), strict=True))
    return map(list, zip(*data, strict=True))
