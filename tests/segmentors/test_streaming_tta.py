"""Streaming test-time augmentation against mmsegmentation's and the published script's steps."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmcv.transforms import Compose
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.structures import PixelData
from mmseg.models.segmentors import SegTTAModel
from mmseg.structures import SegDataSample
from PIL import Image

from mmseg_ext.segmentors import StreamingSegTTAModel
from tests.configs import CONFIGS
from tests.segmentors.small import ONE_CHANNEL, batch_of_two, each_view, random_image, segmentor


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["EncoderDecoder", "StripEncoderDecoder"])
@pytest.mark.parametrize(
    ("merge", "options"),
    [("probs", {}), ("probs", dict(slide=True)), ("logits", {}), ("probs", ONE_CHANNEL)],
    ids=["whole", "slide", "sum of logits", "one channel"],
)
def test_merged_scores_and_labels(kind, merge, options):
    """The views' mean probability or sum of logits, and for one view the plain prediction."""
    model = segmentor(kind=kind, **options)
    model.test_cfg.keep_logits = True
    merged = StreamingSegTTAModel(model, merge=merge)
    one, data = batch_of_two(ratios=(1.0,), directions=()), batch_of_two()
    with torch.no_grad():
        plain, single = each_view(model, one), each_view(model, data)
        stock = SegTTAModel(model).test_step(copy.deepcopy(data))
    several = options != ONE_CHANNEL
    for sample, theirs, seen in zip(merged.test_step(data), stock, single, strict=True):
        scores = torch.stack([view.seg_logits.data for view in seen])  # (9, C, 40, 56)
        if merge == "probs" and several:
            scores = scores.softmax(1)
        expected = scores.mean(0) if merge == "probs" else scores.sum(0)
        assert len(seen) == 9 and expected.std() > 0.02
        difference = (sample.seg_logits.data - expected).abs().max()
        assert difference <= 1e-6 * max(1, expected.abs().max())
        labels = sample.pred_sem_seg.data
        own = expected.argmax(0, keepdim=True) if several else expected > 0.6
        assert (labels == own).float().mean() >= 0.999
        assert labels.shape == (1, 40, 56) and len(labels.unique()) > 1
        if merge == "probs" and several:
            assert (labels == theirs.pred_sem_seg.data).float().mean() >= 0.999
        assert sample.img_path == theirs.img_path
        (again,) = merged.merge_preds([seen])
        assert torch.equal(again.pred_sem_seg.data, labels)
    for sample, (expected,) in zip(merged.test_step(one), plain, strict=True):
        assert torch.equal(sample.pred_sem_seg.data, expected.pred_sem_seg.data)


@pytest.mark.parametrize("kind", ["EncoderDecoder", "StripEncoderDecoder"])
def test_classes_that_a_flip_exchanges_are_exchanged_in_the_scores(kind):
    """As mmcv's `RandomFlip(swap_seg_labels=...)` exchanges them in the labels."""
    model = segmentor(kind=kind)
    model.test_cfg.keep_logits = True
    merged = StreamingSegTTAModel(model, swap_seg_labels=[(0, 2), (3, 1)])
    order = torch.tensor([2, 3, 0, 1, *range(4, model.out_channels)])
    data = batch_of_two()
    with torch.no_grad():
        single = each_view(model, data)
    for sample, seen in zip(merged.test_step(data), single, strict=True):
        flipped = [bool(view.metainfo["flip"]) for view in seen]
        scores = [view.seg_logits.data.softmax(0) for view in seen]
        pairs = zip(scores, flipped, strict=True)
        expected = torch.stack([s[order] if flip else s for s, flip in pairs]).mean(0)
        assert 0 < sum(flipped) < len(flipped)
        torch.testing.assert_close(sample.seg_logits.data, expected, rtol=1e-5, atol=1e-6)


def test_half_precision_logits_are_summed_in_single():
    logits = torch.randn(4, 3, 5, 6).bfloat16()
    views = [SegDataSample(seg_logits=PixelData(data=view)) for view in logits]
    (sample,) = StreamingSegTTAModel(segmentor(3), merge="logits").merge_preds([views])
    torch.testing.assert_close(sample.seg_logits.data, logits.float().sum(0), rtol=1e-6, atol=1e-6)


def published_views(rgb: np.ndarray) -> list[tuple[torch.Tensor, tuple[int, int], bool]]:
    """(network input, scaled size, mirrored) of each view, as EANet's test_torch.py makes them."""
    image = torch.from_numpy(rgb).float() / 255
    image = (image - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    image = image.permute(2, 0, 1)[None]  # (1, 3, H, W)
    height, width = rgb.shape[:2]
    made = []
    for mirrored in (False, True):
        for scale in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75):
            h, w = int(scale * height), int(scale * width)
            x = image.flip(3) if mirrored else image
            x = F.interpolate(x, size=(h, w), mode="bilinear", align_corners=True)
            x = F.pad(x, (0, (9 - w % 8) % 8, 0, (9 - h % 8) % 8))
            made.append((x, (h, w), mirrored))
    return made


def test_views_and_result_are_those_of_the_published_script(tmp_path):
    rgb = random_image(45, 62)
    Image.fromarray(rgb).save(tmp_path / "a.png")
    Image.fromarray(np.zeros((45, 62), np.uint8)).save(tmp_path / "a_label.png")
    model = segmentor(align_corners=True)
    pipeline = Config.fromfile(CONFIGS / "_base_/datasets/voc_published.py").tta_pipeline
    transform = Compose(pipeline)
    paths = dict(img_path=str(tmp_path / "a.png"), seg_map_path=str(tmp_path / "a_label.png"))
    options = dict(reduce_zero_label=False, num_classes=21, seg_fields=[])
    data = pseudo_collate([transform(paths | options)])
    published = published_views(rgb)
    assert len(data["inputs"]) == len(published) == 12

    seen = []
    handle = model.backbone.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    (ours,) = StreamingSegTTAModel(model, merge="logits").test_step(data)
    handle.remove()
    for x, (theirs, _, _) in zip(seen, published, strict=True):
        assert x.shape == theirs.shape
        assert (x - theirs).abs().max() <= 1e-5 * theirs.abs().max()
        assert torch.equal(x == 0, theirs == 0)  # the padding is exactly zero

    total = torch.zeros(1, 5, 45, 62)
    with torch.no_grad():
        for x, (h, w), mirrored in published:
            logits = model.decode_head(model.backbone(x))
            logits = F.interpolate(logits, size=x.shape[2:], mode="bilinear", align_corners=True)
            logits = logits[:, :, :h, :w]
            logits = F.interpolate(logits, size=(45, 62), mode="bilinear", align_corners=True)
            total += logits.flip(3) if mirrored else logits
    assert (ours.seg_logits.data - total[0]).abs().max() <= 1e-5 * total.abs().max()
    agree = ours.pred_sem_seg.data[0] == total[0].argmax(0)
    margin = total[0].topk(2, dim=0).values.diff(dim=0).abs()[0]
    assert agree[margin > 1e-4 * total.abs().max()].all()
    assert len(ours.pred_sem_seg.data.unique()) > 1
    assert ours.gt_sem_seg.data.shape == (1, 45, 62)
