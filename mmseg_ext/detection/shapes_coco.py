"""COCO annotations of the embedded scenes: the visible box and mask of every object.

They are next to the images and label maps of `shapes.generate`, in mmdetection's format. Masks are
run lengths because rings have holes, which polygons cannot describe.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as rle

from mmseg_ext.atomic_write import write_text
from mmseg_ext.datasets.shapes import FIRST_INDEX, FORMS, OBJECT, Recipe, generate, render_objects

SMALLEST = 32  # objects with fewer visible pixels are not annotated


def annotation_file(root: str | Path, split: str) -> Path:
    """Return the path of a split's annotations."""
    return Path(root, "annotations", f"instances_{split}.json")


def annotate(root: str | Path, recipe: Recipe) -> None:
    """Generate the scenes in `root`, with `annotations/instances_{train,val}.json`.

    Existing files are kept.

    Raises:
        FileExistsError: if `root` contains other files, or scenes of another recipe.
    """
    generate(root, recipe)
    for split, first in FIRST_INDEX.items():
        path = annotation_file(root, split)
        if path.exists():
            continue
        content = _split(split, range(first, first + getattr(recipe, split)), recipe)
        write_text(json.dumps(content), path)


def _split(split: str, indices: range, recipe: Recipe) -> dict:
    images, annotations = [], []
    for i, index in enumerate(indices):
        images.append(
            {
                "id": i,
                "file_name": f"JPEGImages/{split}_{i:05d}.jpg",
                "height": recipe.size,
                "width": recipe.size,
            }
        )
        objects = render_objects(recipe.seed, index, recipe.size)[1]
        for label in np.unique(objects[objects > 0]):
            mask = objects == label
            if mask.sum() >= SMALLEST:
                annotation = {
                    "id": len(annotations) + 1,
                    "image_id": i,
                    "category_id": int(label % OBJECT),
                }
                annotations.append(annotation | _shape(mask))
    categories = [{"id": i, "name": name} for i, name in enumerate(FORMS, start=1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def _shape(mask: np.ndarray) -> dict:
    """Return box, area and run lengths of a mask (H, W), which is not empty."""
    code: Any = rle.encode(np.asfortranarray(mask, np.uint8))
    lengths = {"size": list(mask.shape), "counts": code["counts"].decode()}
    box = rle.toBbox(code).tolist()
    return {"bbox": box, "area": int(mask.sum()), "iscrowd": 0, "segmentation": lengths}
