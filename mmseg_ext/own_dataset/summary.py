"""The contents of the splits of a dataset: their table, and notes about their pixels and sizes.

`new_project` and `check_dataset` print the same table and the same notes.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmseg_ext.errors import SHOWN, join_names
from mmseg_ext.images.files import comparable
from mmseg_ext.own_dataset.classes import CLASSES_FILE, IGNORED
from mmseg_ext.own_dataset.item import Item, Notes, Rank

FEW_PIXELS = 1e-4  # share of the pixels
_ROWS = 20  # of the table; a longer one is left to the config


@dataclass
class Split:
    """The readable photos of a split.

    Attributes:
        pixels, images: (num_classes,): the pixels of each class, and the images with it.
        ignored: pixels of no class.
        sizes: the number of images of each (width, height).
    """

    name: str  # train, val or test
    classes: Sequence[str]
    items: Sequence[Item]

    def __post_init__(self):
        count = len(self.classes)
        self.pixels, self.images = np.zeros((2, count), int)
        self.ignored = 0
        self.sizes: Counter[tuple[int, int]] = Counter()
        for item in self.items:
            pixels = item.counts[:count]
            self.pixels += pixels
            self.images += pixels > 0
            self.ignored += int(item.counts.sum() - pixels.sum())
            height, width = item.size
            self.sizes[width, height] += 1


def print_splits(splits: Sequence[Split]) -> None:
    """Print pairs and image sizes of each split, and a table of up to twenty classes."""
    table = Table("", "class", title="Pixels of each class, and images that show it")
    shares = []
    for split in splits:
        pixels = max(1, split.ignored + int(split.pixels.sum()))
        sizes = [f"{width}x{height} ({n:,})" for (width, height), n in split.sizes.most_common()]
        counts = f"{len(split.items):,} pairs, {join_names(sizes)}, {split.ignored / pixels:.2%}"
        print(f"{split.name}: {counts} of the pixels ignored")
        shares.append(split.pixels / pixels)
        for title in (split.name, "", "images"):
            table.add_column(title, justify="right")
    classes = splits[0].classes
    for i, name in enumerate(classes[:_ROWS]):
        cells = [str(i), escape(name)]
        for split, share in zip(splits, shares, strict=True):
            cells += [f"{split.pixels[i]:,}", f"{share[i]:.2%}", f"{split.images[i]:,}"]
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if len(classes) > _ROWS:
        print(f"and {len(classes) - _ROWS} more classes")


def add_notes_on_pixels(
    splits: Sequence[Split], notes: Notes, numbers: Mapping[str, int] | None = None
) -> None:
    """Add a line for similar names, absent classes, label maps without objects, and rare classes.

    Only the first split that shows a class can have a line on it as rare. `numbers` are the classes
    of a project's texts.
    """
    numbers = numbers or {}
    alike: dict[str, list[str]] = {}
    for name in splits[0].classes if numbers else ():
        alike.setdefault(" ".join(comparable(name).split()), []).append(repr(name))
    for same in alike.values():
        if len(same) > 1:
            text = f"the classes {join_names(same)} differ only in case or spaces; if they are one"
            notes.add(Rank.LABELS, f"{text}, give them one name in data/{CLASSES_FILE}")
    # Then some masks can have objects of the value 255, which is ignored, next to 0.
    can_lose = not numbers or (numbers.get("0") == 0 and numbers.get("255") == IGNORED)
    for split in splits:
        absent = [name for name, n in zip(split.classes, split.pixels, strict=True) if not n]
        if absent and split.pixels.any():
            notes.add(Rank.LABELS, f"{split.name}: no pixel of {join_names(absent)}")
        halves = []
        for item in split.items if can_lose else ():
            moved = item.sample.get("label_map") or item.sample.get("reduce_zero_label")
            pixels = item.counts[: len(split.classes)]
            if not moved and 0 < pixels[0] == pixels.sum() < item.counts.sum():
                halves.append(str(item.sample.get("seg_map_path")))
        if halves:
            notes.add(
                Rank.LABELS,
                f"{split.name}: {len(halves)} label maps, such as {halves[0]}, have only class 0 "
                "and ignored pixels; if 255 is an object there, write 1",
            )
    texts = {number: text for text, number in numbers.items()}
    unseen = np.ones(len(splits[0].classes), bool)  # by the splits before
    for split in splits:
        is_rare = split.pixels < FEW_PIXELS * split.pixels.sum()
        is_in_one_image = (split.images == 1) & (len(split.items) > 1)
        few = unseen & (is_rare | is_in_one_image) & (split.pixels > 0)
        for i in np.flatnonzero(few)[:SHOWN]:
            hint = ""
            if is_rare[i] and i in texts:
                hint = f"; not a class? drop the name of {texts[i]} in data/{CLASSES_FILE}"
            counts = f"{split.pixels[i]:,} pixels in images: {split.images[i]:,}"
            notes.add(Rank.HINT, f"{split.name}: {split.classes[i]} has only {counts}{hint}")
        unseen &= split.pixels == 0
