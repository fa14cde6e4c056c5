"""COCO annotations of the embedded scenes, and COCO files that do not fit."""

import json

import numpy as np
import pytest

pytest.importorskip("mmdet")

from mmengine.registry import DATASETS, DefaultScope
from pycocotools.coco import COCO

import mmseg_ext.detection.checked_coco
import mmseg_ext.detection.operators_in_pytorch  # noqa: F401
from mmseg_ext.datasets.shapes import FORMS, Recipe, render
from mmseg_ext.detection.shapes_coco import SMALLEST, annotate, annotation_file
from mmseg_ext.errors import LabelError, MissingDataError

RECIPE = Recipe(seed=10, train=3, val=1, size=96)  # the first scene has an object of 30 pixels


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes") / "shapes"
    annotate(root, RECIPE)
    return root


def test_masks_boxes_and_classes_are_those_of_the_scenes(root):
    truth = COCO(str(annotation_file(root, "train")))
    for index, small in enumerate((30, 0, 0)):
        label = render(RECIPE.seed, index, RECIPE.size)[1]
        seen = np.zeros_like(label)
        for annotation in truth.loadAnns(truth.getAnnIds(index)):
            mask = truth.annToMask(annotation).astype(bool)
            assert not seen[mask].any()  # what hides another is not in its mask
            seen[mask] = annotation["category_id"]
            left, top, width, height = annotation["bbox"]
            rows, columns = np.nonzero(mask)
            assert (left, top) == (columns.min(), rows.min())
            assert (left + width, top + height) == (columns.max() + 1, rows.max() + 1)
            assert annotation["area"] == mask.sum() >= SMALLEST
        assert np.array_equal(seen[seen > 0], label[seen > 0])
        assert ((seen == 0) & (label > 0)).sum() == small < SMALLEST
    assert [c["name"] for c in truth.dataset["categories"]] == list(FORMS)


def load(root, ann_file, **changes):
    loading = dict(type="LoadAnnotations", with_bbox=True, with_mask=True) | changes
    settings = dict(type="CheckedCocoDataset", data_root=f"{root}/", ann_file=str(ann_file))
    settings |= dict(data_prefix=dict(img=""), metainfo=dict(classes=tuple(FORMS)))
    settings["pipeline"] = [loading]
    with DefaultScope.overwrite_default_scope("mmdet"):
        return DATASETS.build(settings)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda c: c["categories"].reverse(), {}, r"disc, ring.*; .*metainfo"),
        # mmdetection would ignore every such object, and train with a mask loss of zero.
        (lambda c: None, dict(poly2mask=False), r"\(poly2mask=False\).*; "),
        (lambda c: c["annotations"][0].pop("segmentation"), {}, "segmentation; .*with_mask=False"),
    ],
    ids=["order of categories", "run lengths for polygons", "no mask"],
)
def test_files_that_would_be_read_incorrectly_are_refused(change, options, message, root, tmp_path):
    content = json.loads(annotation_file(root, "train").read_text())
    assert len(load(root, annotation_file(root, "train"))) == RECIPE.train
    change(content)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content))
    with pytest.raises(LabelError, match=f"^{path}: .*{message}"):
        load(root, path, **options)
    content["categories"].sort(key=lambda category: category["id"])
    content["annotations"] = [{**a, "iscrowd": 1} for a in content["annotations"]]
    path.write_text(json.dumps(content))
    assert len(load(root, path, **options)) == RECIPE.train  # ignored objects are not checked


def test_missing_data_is_named(root):
    with pytest.raises(MissingDataError, match=r"/nowhere\.json: .*annotations/"):
        load(root, root / "annotations/nowhere.json")
