"""Masks of one class each, several for an image, as one annotation; 0 is not the class.

A value of their index map is a tuple of the classes that a pixel has, such as ("leaf", "thin").
Where masks overlap, the class with fewer pixels in all masks counts, so the text of a tuple is
known after all are read.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np

from mmseg_ext.errors import LabelError, join_names
from mmseg_ext.own_dataset.annotations.annotation import (
    BACKGROUND,
    Annotation,
    reading,
    require_size,
)
from mmseg_ext.own_dataset.annotations.codes import index_of, read_mask
from mmseg_ext.own_dataset.annotations.index_map import (
    IndexMap,
    StoredMap,
    at_image_size,
    index_map,
)
from mmseg_ext.own_dataset.annotations.reader import Legend, values_of
from mmseg_ext.own_dataset.selection import evenly

_MASKS_LOOKED_AT = 8  # annotations, to find out whether masks are of one class each


def problem_of(annotations: Sequence[Annotation]) -> str:
    """Return why masks are not of one class each, from a few of them; nothing if they are."""
    try:
        for annotation in evenly(annotations, _MASKS_LOOKED_AT):
            _read_masks(annotation)
    except LabelError as error:
        return str(error)
    return ""


def read(annotation: Annotation, sizes: Sequence[tuple[int, int]]) -> IndexMap:
    """Return the classes of each pixel; see `Reader.read`.

    A class with pixels also has a value of its own, without pixels where others cover it.
    """
    masks = _read_masks(annotation)
    shape = next(iter(masks.values())).shape
    values: list[tuple[str, ...]] = [()]
    indices = np.zeros(shape, int)
    for name, mask in masks.items():
        # An even number is outside of this mask, an odd one inside.
        parts = index_map(2 * indices.astype(int) + mask)
        indices = parts.indices
        values = [values[part // 2] + (name,) * (part % 2) for part in parts.values]
    present = dict.fromkeys(chain.from_iterable(values))
    for value in [(), *zip(present)]:  # (), ("leaf",), ("thin",)
        if value not in values:
            values.append(value)
    with reading(annotation.path):
        return at_image_size(IndexMap(values, indices), sizes)


def describe(maps: Sequence[StoredMap]) -> Legend:
    """Return the names of the classes; where masks overlap, the rarer class counts."""
    pixels: Counter[str] = Counter()
    masks = 0
    for part in maps:
        masks += len(part.annotation.paths)
        pixels.update(dict.fromkeys(part.annotation.classes, 0))
        for value, count in zip(part.values, part.counts.tolist(), strict=True):
            pixels.update(dict.fromkeys(value, count))
    names = sorted(pixels)
    rare_last = sorted(names, key=lambda name: -pixels[name])
    texts = {}
    for value in values_of(maps):
        texts[value] = max(value, key=rare_last.index, default=BACKGROUND)
    order = ", ".join(filter(pixels.get, reversed(rare_last)))
    note = (
        f"{masks} masks of one class each became {len(maps)} label maps; where they overlap, "
        f"the first of these counts: {order}"
    )
    notes = [note, *_note_on_joined(maps)]
    return Legend(dict(enumerate([BACKGROUND, *names])), texts, notes=notes)


def _note_on_joined(maps: Sequence[StoredMap]) -> list[str]:
    """Return a note with the masks of the first image that has several of one class."""
    for part in maps:
        classes = part.annotation.classes
        name, count = Counter(classes).most_common(1)[0]
        if count > 1:
            first = classes.index(name)
            files = [path.name for path in part.annotation.paths[first : first + count]]
            return [
                f"several masks of an image became one class, as {join_names(files, 3)} are {name};"
                f" if each is a class, write its number without a separator, such as {name}1"
            ]
    return []


def _read_masks(annotation: Annotation) -> dict[str, np.ndarray]:
    """Return the pixels of each class, (H, W) bool."""
    masks: dict[str, np.ndarray] = {}
    shape = None
    for path, name in zip(annotation.paths, annotation.classes, strict=True):
        with reading(path):
            mask = read_mask(path)
            shape = shape or mask.indices.shape
            require_size(mask.indices.shape, [shape])
            is_class = index_of(np.array(mask.values)) > 0  # of each value
            if is_class.sum() > 1:
                raise ValueError(f"the mask of one class has {is_class.sum()} values other than 0")
            masks[name] = is_class[mask.indices] | masks.get(name, False)
    return masks
