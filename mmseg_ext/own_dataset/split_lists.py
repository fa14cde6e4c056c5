"""Splits from lists of names, such as VOC's `ImageSets/Segmentation/train.txt`.

A line has the name or the path of an image, with or without its suffix.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmseg_ext.errors import join_names
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
        ValueError: if a list cannot be read, or has an image of another one, or a given one fits
            no pair.
    """
    lists = given or _lists_of_voc(folder)
    notes, used, left_out, kept = [], [], [], []
    by_end = _by_end(pairs)
    for split, file in lists.items():
        listed, unknown = _read(file, by_end)
        count = f"{file}: {len(unknown)} names fit no image with an annotation, or several"
        if given and not listed:
            raise ValueError(f"{count}; write a name per line, such as {pairs[0].image.stem}")
        if not listed:
            notes.append(f"{count}; it is not used")
        elif unknown:
            notes.append(f"{count}, such as {join_names(unknown)}")
        elif not given:
            notes.append(f"{file}: is the list of {split}")
        for pair in listed:
            if pair.list_file not in (None, file):
                raise ValueError(f"{file}: {pair.image.name} is also in {pair.list_file}; drop one")
            pair.split, pair.list_file = split, file
    has_train = any(pair.list_file == lists.get("train", "") for pair in pairs)
    for pair in pairs:
        if pair.list_file and earlier.get(pair.name, pair.split) in lists.keys() - {pair.split}:
            pair.split = earlier[pair.name]
            kept.append(pair.name)
        if pair.list_file or not has_train:
            used.append(pair)
        else:
            left_out.append(f"{pair.image}: is in no list of a split")
    if kept:
        notes.append(f"{len(kept)} images stay in the split of an earlier run: {join_names(kept)}")
    return used, left_out, notes


def _by_end(pairs: Sequence[Pair]) -> dict[tuple[str, ...], list[Pair]]:
    """Return the pairs by each end of their images' paths, as ("a",) and ("x", "a") of x/a.jpg."""
    by_end: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        path = _parts(pair.image)
        for start in range(len(path)):
            by_end[path[start:]].append(pair)
    return by_end


def _parts(path: Path) -> tuple[str, ...]:
    return (*path.parts[:-1], key_of(Path(path.name)).name)  # without a suffix


def _read(
    file: Path, by_end: Mapping[tuple[str, ...], Sequence[Pair]]
) -> tuple[list[Pair], list[str]]:
    """Return the pairs that a list names, and the lines that fit none, or several.

    The longest end of a path counts that fits a pair.
    """
    try:
        lines = file.read_text("utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from error
    listed, unknown = [], []
    for line in filter(None, map(str.strip, lines)):
        ends = []
        for text in (line, line.split()[0]):  # "my photo.jpg", or "a.jpg a.png"
            path = _parts(Path(text.replace("\\", "/")))
            ends += [path[start:] for start in range(len(path))]
        fitting = next((by_end[end] for end in ends if end in by_end), [])
        if len(fitting) == 1:
            listed.append(fitting[0])
        else:
            unknown.append(line)
    return listed, unknown
