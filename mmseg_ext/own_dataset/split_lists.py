"""Splits from lists of names, such as VOC's `ImageSets/Segmentation/train.txt`.

A line has the name or the path of an image, with or without its suffix.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmseg_ext.errors import join_names
from mmseg_ext.images.files import comparable, read_bytes, same_name
from mmseg_ext.own_dataset.item import Item, Notes, Rank, usable
from mmseg_ext.own_dataset.matching import SPLIT_WORD, key_of


def _lists_of_voc(images: Path) -> dict[str, Path]:
    """Return the list of each split in VOC's layout, whose root `images` is or is in."""
    lists = {}
    for folder in (images, *images.absolute().parents[:2]):  # VOC2012/JPEGImages/*.jpg
        for file in sorted(folder.glob("ImageSets/Segmentation/*.txt")):
            if found := SPLIT_WORD.fullmatch(file.stem):  # Validation.txt, not trainval.txt
                shown = file if images.is_absolute() else Path(os.path.relpath(file))
                lists.setdefault(found[1].lower(), shown)
    return lists


def apply_lists(
    items: Sequence[Item],
    given: Mapping[str, Path],
    folder: Path,
    earlier: Mapping[str, str],
    notes: Notes,
) -> None:
    """Set the splits of listed items; others get a problem if there is a list for train.

    The lists are those of VOC's layout around `folder`, if none are given. Items in no list of
    several are perhaps a test set. Splits of `earlier` runs stay.

    Raises:
        UnreadableFileError: if a list cannot be read.
        ValueError: if one has an image of another one, or a given one fits no item.
    """
    lists = given or _lists_of_voc(folder)
    items = usable(items)
    by_name: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_name[comparable(_parts(item.image)[-1])].append(item)
    kept = []
    for split, file in lists.items():
        listed, unknown = [], []
        text = read_bytes(str(file)).decode("utf-8-sig", "replace")
        for line in filter(None, map(str.strip, text.splitlines())):
            found = _find(line, by_name)
            if len(found) == 1:
                listed += found
            else:
                unknown.append(line)
        some = f"{len(unknown)} names fit no image or several, such as {join_names(unknown)}"
        note = f"{file}: {len(listed)} images are in {split}" + (f"; {some}" if unknown else "")
        if given and not listed:
            raise ValueError(f"{note}; write a name per line, such as {items[0].image.stem}")
        if listed or unknown:  # else it is empty
            notes.add(Rank.HINT, note)
        for item in listed:
            if item.list_file not in (None, file):
                raise ValueError(f"{file}: {item.image.name} is also in {item.list_file}; drop one")
            item.split, item.list_file = earlier.get(item.name, split), file
            if item.split != split:
                kept.append(item.name)
    if any(item.list_file == lists.get("train", "") for item in items):
        for item in items:
            if not item.list_file:
                item.problem = f"{item.image}: is in no list of a split"
    if kept:
        text = f"{len(kept)} images stay in the split of an earlier run: {join_names(kept)}"
        notes.add(Rank.HINT, text)


def _find(line: str, by_name: Mapping[str, Sequence[Item]]) -> Sequence[Item]:
    """Return the items with the name in a line; if there are several, those in its folders."""
    for text in (line, line.split()[0]):  # "my photo.jpg", or "a.jpg a.png"
        path = _parts(Path(text.replace("\\", "/")))
        found = by_name.get(comparable(path[-1]), ())
        if len(found) > 1:  # those in its folders; of these perhaps only one in the same case
            ends = {item.image: "/".join(_parts(item.image)[-len(path) :]) for item in found}
            end = same_name("/".join(path), list(ends.values()))
            found = [item for item in found if ends[item.image] == end]
        if found:
            return found
    return []


def _parts(path: Path) -> tuple[str, ...]:
    return (*path.parts[:-1], key_of(Path(path.name)).name)  # without a suffix
