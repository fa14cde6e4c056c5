"""The pixels of an annotation: an index in each pixel, and the value of each index.

An index map does not depend on the classes, which are known only after all annotations are read.
It waits in a compressed file, so each annotation is decoded once.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmseg_ext.own_dataset.annotations.annotation import Annotation


@dataclass
class StoredMap:
    """The index map of an annotation, in a file."""

    annotation: Annotation
    values: Sequence[Any]  # the value of each index
    counts: np.ndarray  # the pixels of each index, (len(values),)
    shape: tuple[int, ...]  # height and width
    dtype: np.dtype
    file: Path
    notes: Sequence[str]  # see `IndexMap`

    def load(self) -> np.ndarray:
        """Return the index of each pixel, (H, W)."""
        data = zlib.decompress(self.file.read_bytes())
        return np.frombuffer(data, self.dtype).reshape(self.shape)


@dataclass
class IndexMap:
    """An annotation as its reader returns it; a value can be without pixels."""

    values: Sequence[Any]  # the value of each index
    indices: np.ndarray  # (H, W)
    notes: Sequence[str] = ()  # what a user should know; equal ones of all files are counted

    def store(self, annotation: Annotation, file: Path) -> StoredMap:
        """Write the indices of an annotation to a file."""
        dtype = np.min_scalar_type(len(self.values))
        indices = np.ascontiguousarray(self.indices, dtype)
        counts = np.bincount(indices.ravel(), minlength=len(self.values))
        file.write_bytes(zlib.compress(indices.tobytes(), 1))  # fast, and small enough
        return StoredMap(annotation, self.values, counts, indices.shape, dtype, file, self.notes)


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
