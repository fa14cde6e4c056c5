"""Masks of one class each, several for an image, as one annotation."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmseg_ext.own_dataset.annotations.masks import (
    BACKGROUND,
    MASKS_READ,
    Annotation,
    codes_of,
    different_codes,
    index_of,
    reading,
    require_size,
)
from mmseg_ext.own_dataset.annotations.polygons import Polygons


class ClassMasks(Polygons):
    """Masks of one class each, which `Annotation.content` has by class; 0 is not the class.

    Where masks overlap, the class with fewer pixels in all masks counts.
    """

    def __init__(self, annotations: Sequence[Annotation]):
        """Read a few of the annotations.

        Raises:
            LabelError: if their masks are not of one class each.
        """
        names = {name for annotation in annotations for name in annotation.content} - {BACKGROUND}
        self.labels, self.colors = dict(enumerate([BACKGROUND, *sorted(names)])), {}
        self._pixels = Counter()  # of each class
        for annotation in annotations[:: -(-len(annotations) // MASKS_READ)]:
            self.shapes(annotation)

    def prepare(self, annotations: Sequence[Annotation]) -> list[set[str]]:
        def labels(annotation: Annotation) -> set[str]:
            pixels = Counter({name: int(mask.sum()) for name, mask in self.shapes(annotation)[1]})
            self._pixels += pixels
            return {BACKGROUND, *+pixels}  # without classes of no pixel

        found = self._read_each(annotations, labels)
        order = ", ".join(name for name, _ in reversed(self._pixels.most_common()))
        masks = sum(1 + len(annotation.objects) for annotation in annotations)
        self.notes = [
            f"{masks} masks of one class each became {len(found)} label maps; where they overlap, "
            f"the first of these counts: {order}"
        ]
        return found

    def shapes(self, annotation: Annotation) -> tuple[tuple[int, int], list[tuple[str, Any]]]:
        masks: dict[str, np.ndarray] = {}
        for name, paths in annotation.content.items():
            for path in paths:
                with reading(Annotation(path)):
                    codes = codes_of(path)
                    require_size(codes.shape, [m.shape for m in masks.values()] or [codes.shape])
                    if (count := np.count_nonzero(index_of(different_codes(codes)))) > 1:
                        raise ValueError(f"the mask of one class has {count} values other than 0")
                    masks[name] = (index_of(codes) > 0) | masks.get(name, False)
        rare_last = sorted(masks.items(), key=lambda part: -self._pixels[part[0]])
        return next(iter(masks.values())).shape, rare_last
