"""Splits from lists of names, such as VOC's `ImageSets/Segmentation/train.txt`.

A line has the name or the path of an image, with or without its suffix.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmseg_ext.errors import join_names
from mmseg_ext.images.files import read_bytes
from mmseg_ext.own_dataset.matching import SPLIT_WORD, key_of
from mmseg_ext.own_dataset.pairs import Pair


def _lists_of_voc(images: Path) -> dict[str, Path]:
    """Return the list of each split in VOC's layout, whose root `images` is or is in."""
    lists = {}
    for folder in (images, *images.absolute().parents[:2]):  # VOC2012/JPEGImages/*.jpg
        for file in sorted(folder.glob("ImageSets/Segmentation/*.txt")):
            if found := SPLIT_WORD.fullmatch(file.stem):  # Validation.txt, not trainval.txt
                lists.setdefault(found[1].lower(), file)
    return lists


def apply_lists(
    pairs: Sequence[Pair], given: Mapping[str, Path], folder: Path, earlier: Mapping[str, str]
) -> tuple[list[Pair], list[str], list[str]]:
    """Set the splits of listed pairs; return the pairs to use, a line for each other, and notes.

    The lists are those of VOC's layout around `folder`, if none are given. If there is one for
    train, pairs in no list are perhaps a test set, and not used. Splits of `earlier` runs stay.

    Raises:
        UnreadableFileError: if a list cannot be read.
        ValueError: if one has an image of another one, or a given one fits no pair.
    """
    lists = given or _lists_of_voc(folder)
    by_name: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_name[_parts(pair.image)[-1]].append(pair)
    notes, used, left_out, kept = [], [], [], []
    for split, file in lists.items():
        listed, unknown = [], []
        text = read_bytes(str(file)).decode("utf-8-sig", "replace")
        for line in filter(None, map(str.strip, text.splitlines())):
            found = _find(line, by_name)
            if len(found) == 1:
                listed += found
            else:
                unknown.append(line)
        note = f"{file}: {len(listed)} images are in {split}"
        if unknown:
            note += f"; {len(unknown)} names fit no image or several, such as {join_names(unknown)}"
        if given and not listed:
            raise ValueError(f"{note}; write a name per line, such as {pairs[0].image.stem}")
        notes.append(note)
        for pair in listed:
            if pair.list_file not in (None, file):
                raise ValueError(f"{file}: {pair.image.name} is also in {pair.list_file}; drop one")
            pair.split, pair.list_file = earlier.get(pair.name, split), file
            if pair.split != split:
                kept.append(pair.name)
    has_train = any(pair.list_file == lists.get("train", "") for pair in pairs)
    for pair in pairs:
        if pair.list_file or not has_train:
            used.append(pair)
        else:
            left_out.append(f"{pair.image}: is in no list of a split")
    if kept:
        notes.append(f"{len(kept)} images stay in the split of an earlier run: {join_names(kept)}")
    return used, left_out, notes


def _find(line: str, by_name: Mapping[str, Sequence[Pair]]) -> Sequence[Pair]:
    """Return the pairs with the name in a line; if there are several, those in its folders."""
    for text in (line, line.split()[0]):  # "my photo.jpg", or "a.jpg a.png"
        path = _parts(Path(text.replace("\\", "/")))
        found = by_name.get(path[-1], ())
        if len(found) > 1:
            found = [pair for pair in found if _parts(pair.image)[-len(path) :] == path]
        if found:
            return found
    return []


def _parts(path: Path) -> tuple[str, ...]:
    return (*path.parts[:-1], key_of(Path(path.name)).name)  # without a suffix
