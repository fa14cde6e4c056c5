"""COCO annotations of the embedded scenes: the visible box and mask of every object.

They are next to the images and label maps of `shapes.generate`, in mmdetection's format. Masks are
uncompressed run lengths because rings have holes, which polygons cannot describe.
"""

import json
from pathlib import Path

import numpy as np

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
        side = {"height": recipe.size, "width": recipe.size}
        images.append({"id": i, "file_name": f"JPEGImages/{split}_{i:05d}.jpg", **side})
        objects = render_objects(recipe.seed, index, recipe.size)[1]
        for label in np.unique(objects[objects > 0]):
            mask = objects == label
            if mask.sum() >= SMALLEST:
                annotation = {"id": len(annotations) + 1, "image_id": i}
                annotation["category_id"] = int(label % OBJECT)
                annotations.append(annotation | _shape(mask))
    categories = [{"id": i, "name": name} for i, name in enumerate(FORMS, start=1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def _shape(mask: np.ndarray) -> dict:
    """Return box, area and run lengths of a mask (H, W), which is not empty."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    top, left = int(rows[0]), int(columns[0])
    box = [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top]
    return {
        "bbox": box,
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": {"size": list(mask.shape), "counts": run_lengths(mask)},
    }


def run_lengths(mask: np.ndarray) -> list[int]:
    """Return COCO's run lengths of a mask (H, W), by columns; the first run is zeros."""
    flat = mask.ravel(order="F").astype(np.int8)
    edges = np.flatnonzero(np.diff(flat, prepend=0)).tolist()  # a first run of ones starts at 0
    return np.diff([0, *edges, flat.size]).tolist()
