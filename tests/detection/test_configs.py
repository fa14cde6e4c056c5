"""Every config for mmdetection: the published figures, its pipelines, one step and one inference.

Widths, depths and image sizes are reduced, so that a step takes a fraction of a second; heads,
losses, samplers, assigners, optimizer and schedules are what the config says.
"""

from pathlib import Path

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.dataset import pseudo_collate
from mmengine.model.utils import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, PARAM_SCHEDULERS, DefaultScope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import nn

pytest.importorskip("mmdet")

import mmseg_ext.detection.operators_in_pytorch  # noqa: F401
from mmseg_ext.commands import run
from mmseg_ext.cost.model_cost import count_multiply_adds  # only a command is public
from mmseg_ext.datasets.shapes import FORMS, Recipe
from mmseg_ext.detection.shapes_coco import annotate
from tests.configs import CONFIGS, load
from tests.messages import check_message
from tests.models import NARROW_LAMBDA, NARROW_RMT

DETECTORS = sorted((CONFIGS / "detection").glob("*rcnn*.py"))
DETECTORS += sorted((CONFIGS / "detection").glob("retinanet*.py"))

# Parameters in millions and multiply-adds of the modules in 10^9 at 800x1280, 1000 proposals and
# 100 of them for the masks: ours, and what arXiv 2309.11523 has.
FIGURES = {
    "mask_rcnn_rmt_tiny_fpn_coco_1x": (32.93, 217.7, 33, 218),
    "mask_rcnn_rmt_small_fpn_coco_1x": (45.57, 262.0, 46, 262),
    "cascade_mask_rcnn_rmt_small_fpn_coco_3x": (83.40, 740.3, 83, 741),
}


def build(model: dict, scope: str = "mmdet") -> nn.Module:
    with DefaultScope.overwrite_default_scope(scope):
        return revert_sync_batchnorm(MODELS.build(ConfigDict(model)))


class Proposing(nn.Module):
    """A two-stage detector's modules on an image (1, 3, H, W), 1000 boxes and 100 masks."""

    def __init__(self, detector: nn.Module):
        super().__init__()
        self.detector = detector

    def forward(self, images):
        maps = self.detector.extract_feat(images)
        self.detector.rpn_head(maps)
        for name, count, side in (("bbox_head", 1000, 7), ("mask_head", 100, 14)):
            heads = getattr(self.detector.roi_head, name)
            for head in heads if isinstance(heads, nn.ModuleList) else [heads]:
                head(images.new_empty(count, 256, side, side))
        return maps


@pytest.mark.parametrize("name", FIGURES)
def test_parameters_and_multiply_adds_are_the_papers(name):
    parameters, multiply_adds, paper_parameters, paper_multiply_adds = FIGURES[name]
    model = load(CONFIGS / "detection" / f"{name}.py").model.to_dict()
    model["backbone"]["init_cfg"] = None
    with torch.device("meta"):
        detector = build(model).eval()
        counted = count_multiply_adds(Proposing(detector), torch.empty(1, 3, 800, 1280))
    millions = sum(p.numel() for p in detector.parameters()) / 1e6
    assert millions == pytest.approx(parameters, abs=0.005)
    assert counted.modules / 1e9 == pytest.approx(multiply_adds, abs=0.05)
    assert millions == pytest.approx(paper_parameters, rel=0.015)
    assert counted.modules / 1e9 == pytest.approx(paper_multiply_adds, rel=0.004)


SMALLER = {256: 32, 1024: 64, 80: len(FORMS), 512: 32, 2000: 100, 1000: 100}


def small(model: dict) -> dict:
    """The detector with a narrow backbone, narrow heads, and five classes."""
    model = reduced(model)
    backbone = model["backbone"] | {"init_cfg": None, "norm_cfg": {"type": "BN"}}
    if backbone["type"] == "RMT":
        backbone["arch"] = NARROW_RMT
        widths = [NARROW_RMT["embed_dims"][i] for i in backbone.get("out_indices", range(4))]
    else:
        backbone |= NARROW_LAMBDA
        widths = [256, 512, 1024, 2048]
    neck = model["neck"] | {"in_channels": widths}
    return model | {"backbone": backbone, "neck": neck}


def reduced(node):
    """Smaller widths of a model, and an eighth of a pipeline's scales and crops."""
    if isinstance(node, dict):
        return {key: reduced(value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        if all(isinstance(value, (int, float)) for value in node):
            large = len(node) == 2 and min(node) > 300
            return tuple(side // 8 for side in node) if large else node
        return type(node)(map(reduced, node))
    return SMALLER.get(node, node) if type(node) is int else node


RECIPE = dict(train=2, val=2, size=96)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("scenes") / "shapes"
    annotate(root, Recipe(**RECIPE))
    return root


def dataset(settings: dict, root: Path, split: str):
    """The config's dataset and pipeline on the embedded scenes."""
    if "recipe" in settings:
        settings["recipe"] = RECIPE
    settings = reduced(settings) | {
        "data_root": f"{root}/",
        "ann_file": f"annotations/instances_{split}.json",
        "data_prefix": {"img": ""},
        "metainfo": {"classes": tuple(FORMS)},
    }
    with DefaultScope.overwrite_default_scope("mmdet"):
        return DATASETS.build(settings)


@pytest.mark.parametrize("path", DETECTORS, ids=lambda path: path.stem)
def test_one_training_step_and_one_inference(path, scenes):
    config = load(path)
    settings = config.to_dict()
    model = build(small(settings["model"]))
    model.init_weights()
    train = dataset(settings["train_dataloader"]["dataset"], scenes, "train")
    optimizer = build_optim_wrapper(model, config.optim_wrapper)
    first = next(model.backbone.parameters())  # the gradient has come through everything
    before = first.detach().clone()
    batch = model.train().data_preprocessor(pseudo_collate([train[0], train[1]]), True)
    loss, parts = model.parse_losses(model(**batch, mode="loss"))
    assert loss > 0.5 and all(torch.isfinite(value).all() for value in parts.values())
    loss.backward()
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []
    optimizer.step()
    assert not torch.equal(first, before)
    for scheduler in config.param_scheduler:
        with DefaultScope.overwrite_default_scope("mmdet"):
            PARAM_SCHEDULERS.build(scheduler, default_args={"optimizer": optimizer.optimizer})

    test = dataset(settings["test_dataloader"]["dataset"], scenes, "val")
    with torch.no_grad():
        (result,) = model.eval().test_step(pseudo_collate([test[0]]))
    found = result.pred_instances
    assert 0 <= len(found) <= 100 and found.bboxes.shape[1] == 4
    assert (found.labels < len(FORMS)).all()
    if "masks" in found:
        assert found.masks.shape[1:] == result.ori_shape == (96, 96)


def test_commands_for_segmentors_refuse_detectors_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # where the scenes are written
    folder, refused = str(CONFIGS / "detection"), "MaskRCNN"
    recipe = " --split val --cfg-options val_dataloader.dataset.recipe.train=1"
    for words, name in (
        ("model_cost {}/mask_rcnn_rmt_shapes.py", refused),
        ("export {}/mask_rcnn_rmt_shapes.py none", refused),
        ("check_dataset {}/mask_rcnn_rmt_shapes.py" + recipe, "ShapesCocoDataset"),
        ("model_cost {}/mask2former_rmt_small_ade20k_160k.py", "model"),
    ):
        command, *flags = words.format(folder).split()
        assert run(command, flags) in (1, 2)
        check_message(capsys.readouterr().err.splitlines()[-1], name, where="mmseg_ext: ")


def test_mask2former_trains_and_predicts():
    model = load(CONFIGS / "detection/mask2former_rmt_small_ade20k_160k.py").model.to_dict()
    segmentor = build(model | {"backbone": {"type": "RMT", "arch": "tiny"}}, "mmseg")
    parameters = sum(p.numel() for p in segmentor.parameters())
    assert parameters / 1e6 == pytest.approx(32.58, abs=0.005)
    sample = SegDataSample(metainfo={"img_shape": (64, 64), "ori_shape": (64, 64)})
    labels = torch.randint(0, 3, (1, 8, 8)).repeat_interleave(8, 1).repeat_interleave(8, 2)
    sample.gt_sem_seg = PixelData(data=labels)
    images = torch.randn(1, 3, 64, 64)
    loss, _ = segmentor.parse_losses(segmentor(images, [sample], mode="loss"))
    loss.backward()
    assert torch.isfinite(loss) and segmentor.backbone.stem[0].weight.grad.abs().sum() > 0
    with torch.no_grad():
        (result,) = segmentor.eval()(images, [sample], mode="predict")
    assert result.pred_sem_seg.data.shape == (1, 64, 64)
