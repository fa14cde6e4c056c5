"""The pixels of an annotation: an index in each pixel, and the value of each index.

An index map does not depend on the classes, which are known only after all annotations are read.
It waits in a compressed file, so each annotation is decoded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from mmseg_ext.own_dataset.annotations.annotation import Annotation, require_size

_RESIZED = "a mask of another size than its photo, in the same proportions, was resized to it"


@dataclass
class StoredMap:
    """The index map of an annotation, in a file."""

    annotation: Annotation
    values: Sequence[Any]  # the value of each index
    counts: np.ndarray  # the pixels of each index, (len(values),)
    shape: tuple[int, ...]  # height and width
    file: Path
    notes: Sequence[str]  # see `IndexMap`

    def load(self) -> np.ndarray:
        """Return the index of each pixel, (H, W)."""
        with np.load(self.file) as arrays:
            return arrays["indices"]


@dataclass
class IndexMap:
    """An annotation as its reader returns it; a value can be without pixels."""

    values: Sequence[Any]  # the value of each index
    indices: np.ndarray  # (H, W)
    notes: Sequence[str] = ()  # what a user should know; equal ones of all files are counted

    def store(self, annotation: Annotation, file: Path) -> StoredMap:
        """Write the indices of an annotation to a file."""
        indices = self.indices.astype(np.min_scalar_type(len(self.values)), copy=False)
        counts = np.bincount(indices.ravel(), minlength=len(self.values))
        with file.open("wb") as out:
            np.savez_compressed(out, indices=indices)
        return StoredMap(annotation, self.values, counts, indices.shape, file, self.notes)


def index_map(values: np.ndarray) -> IndexMap:
    """Return the index map of an array of integers (H, W), with ascending values."""
    if values.dtype.itemsize <= 2:  # a table is faster than a search
        present = np.flatnonzero(np.bincount(values.ravel()))
        table = np.zeros(present[-1] + 1, np.min_scalar_type(len(present)))
        table[present] = np.arange(len(present))
        return IndexMap(present.tolist(), table[values])
    # np.unique sorts all pixels.
    present = torch.from_numpy(values).unique_consecutive().unique().numpy()
    return IndexMap(present.tolist(), np.searchsorted(present, values))


def at_image_size(found: IndexMap, sizes: Sequence[tuple[int, int]]) -> IndexMap:
    """Return an index map at one of the sizes (height, width) that its image may have.

    A mask in the proportions of the image, up to the rounding of its sides, is resized with nearest
    neighbor.

    Raises:
        ValueError: if the proportions differ.
    """
    size = found.indices.shape
    for image_size in sizes:
        if size not in sizes and _has_proportions(size, image_size):
            indices = found.indices.astype(np.int32)
            indices = cv2.resize(indices, image_size[::-1], interpolation=cv2.INTER_NEAREST_EXACT)
            return IndexMap(found.values, indices, [*found.notes, _RESIZED])
    require_size(size, sizes)
    return found


def _has_proportions(size: Sequence[int], image_size: Sequence[int]) -> bool:
    """Return whether some factor makes both sides of an image, rounded up or down, those of `size`.

    A single side that differs is a part that was cut off.
    """
    (height, width), (image_height, image_width) = size, image_size
    if height == image_height or width == image_width:
        return False
    return abs(height * image_width - width * image_height) < image_height + image_width
