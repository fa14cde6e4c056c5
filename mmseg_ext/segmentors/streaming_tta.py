"""Test-time augmentation with at most one full-resolution map for any number of views.

mmsegmentation's `SegTTAModel` stores the full-resolution logits of all views (12 for six scales and
flips) and merges them at the end. The merge is a sum. With `StripEncoderDecoder` only the views'
logits at the head's resolution are stored; they are merged in strips of rows. With other segmentors
all views are stored, as in mmsegmentation.

`merge='probs'` is `SegTTAModel`'s rule, the mean of the views' softmax. `merge='logits'` is the sum
of raw logits with which EANet (arXiv 2105.02358) was tested: MenghaoGuo/EANet, `test_torch.py`. Its
views are the `tta_pipeline` of `configs/_base_/datasets/voc_published.py`.

Deviation from `SegTTAModel`: with one output channel a view's map is its foreground probability,
and the mean is compared with the head's threshold, as for a single view. mmsegmentation 1.2.2 to
1.4.2 applies the sigmoid a second time, which raises every pixel above 0.5.
"""

from collections.abc import Sequence
from typing import Any, cast, get_args

import torch
from mmengine.model import BaseTTAModel
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample

from mmseg_ext.layers.precision import full_precision
from mmseg_ext.segmentors.mixed_sizes import by_size
from mmseg_ext.segmentors.score_maps import Merge, labels_of
from mmseg_ext.segmentors.strip_encoder_decoder import StripEncoderDecoder


@MODELS.register_module()
class StreamingSegTTAModel(BaseTTAModel):
    """A test-time augmentation model that merges an image's views, also with sliding windows.

    Args:
        swap_seg_labels: pairs of classes that a flip exchanges, as of mmcv's `RandomFlip`; their
            scores in flipped views are exchanged, too. `test --tta` takes them from training.

    The result is the first view's sample with `pred_sem_seg` (1, H, W) and, as `seg_logits`, the
    merged map (C, H, W) in float32 or float64: the mean of the views' probabilities, or the sum of
    their logits.

    Raises:
        ValueError: for another `merge`, for `merge='logits'` with a segmentor of one output
            channel, which returns probabilities, and for pairs of channels that it does not have.
    """

    module: Any
    merge: Merge

    def __init__(
        self,
        module,
        merge: Merge = "probs",
        data_preprocessor=None,
        swap_seg_labels: Sequence[Sequence[int]] = (),
    ):
        if merge not in get_args(Merge):
            raise ValueError(f"merge={merge!r}: unknown; use one of {get_args(Merge)}")
        super().__init__(module, data_preprocessor)
        if merge == "logits" and self.module.out_channels == 1:
            raise ValueError("merge='logits': the segmentor has one output channel; use 'probs'")
        self.merge = merge
        count = self.module.out_channels
        self._order = list(range(count))  # of the classes in a flipped view
        for one, other in swap_seg_labels:
            if not (0 <= one < count and 0 <= other < count):
                text = f"swap_seg_labels={list(swap_seg_labels)}: the segmentor has {count} output"
                todo = "set tta_model.swap_seg_labels=[], or leave the flips out of tta_pipeline"
                raise ValueError(f"{text} channels; {todo}")
            self._order[one], self._order[other] = other, one

    @torch.no_grad()
    def test_step(self, data: dict) -> list[SegDataSample]:
        """Return the merged predictions of a batch of images.

        `data` comes from `TestTimeAug` and the data loader: for each field, a list over views of
        lists over the batch.
        """
        if not (isinstance(self.module, StripEncoderDecoder) and self.module.predicts_in_strips()):
            return cast(list[SegDataSample], super().test_step(data))
        return list(by_size(self._merged_step, data))

    def _merged_step(self, data: dict) -> list[SegDataSample]:
        """Return the predictions of images that have equal sizes in each view."""
        samples: list[SegDataSample] = []  # of the first view
        maps = []  # per view, the scores of each image
        for values in zip(*data.values(), strict=True):  # of the fields of one view
            batch = dict(zip(data, values, strict=True))
            view = self.module.data_preprocessor(batch, False)
            scores = self.module.score_maps(view["inputs"], view["data_samples"])
            for sample, score_map in zip(view["data_samples"], scores, strict=True):
                if sample.metainfo.get("flip"):
                    score_map.reorder(self._order)
            maps.append(scores)
            samples = samples or view["data_samples"]
        views_of_images = zip(*maps, strict=True)
        for sample, views in zip(samples, views_of_images, strict=True):
            self.module.set_prediction(sample, list(views), self.merge)
        return samples

    def merge_preds(self, data_samples_list: list[Sequence[SegDataSample]]) -> list[SegDataSample]:
        """Merge a list over images of lists over views; return the first views' samples."""
        has_one = self.module.out_channels == 1  # probabilities already
        threshold = self.module.decode_head.threshold if has_one else None
        for views in data_samples_list:
            total: Any = 0
            for view in views:
                logits: Any = view.seg_logits
                scores = logits.data.to(full_precision(logits.data.dtype))  # C, H, W
                if view.metainfo.get("flip"):
                    scores = scores[self._order]
                if self.merge == "probs" and not has_one:
                    scores = scores.softmax(dim=0)
                total = total + scores
            if self.merge == "probs":
                total /= len(views)
            labels = labels_of(total, threshold, 0)[None]  # 1, H, W
            for name, data in (("seg_logits", total), ("pred_sem_seg", labels)):
                views[0].pop(name, None)
                views[0].set_data({name: PixelData(data=data)})
        return [views[0] for views in data_samples_list]
