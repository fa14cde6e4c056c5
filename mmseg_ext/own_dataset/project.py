"""The data of a project for your own images: pairs of images and label maps in `data/`.

Sources never change. A second run writes all pairs again. It keeps their splits, which are in
`splits.json`, and the classes in `classes.json`.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.errors import LabelError, UnreadableFileError
from mmseg_ext.images.files import files_below, read, read_bytes
from mmseg_ext.images.values import IMAGE_SUFFIXES, declared
from mmseg_ext.own_dataset.annotations.masks import Masks
from mmseg_ext.own_dataset.check import Summary
from mmseg_ext.own_dataset.classes import IGNORED, update_classes
from mmseg_ext.own_dataset.pairs import Pair, find_pairs
from mmseg_ext.own_dataset.splits import choose, connect, find_copies, find_groups, small_version
from mmseg_ext.terminal import progress


class Project(NamedTuple):
    """The data of a project."""

    labels: dict[str, int]  # the class of the text of each annotated value, or 255
    colors: dict[int, list[int]]  # RGB, of classes that have one
    summaries: list[Summary]  # the training set first
    left_out: list[str]  # a line for each file that is not in a pair
    example: Sequence[Path]  # an image and its masks
    earlier: Sequence[Path] = ()  # images of pairs that only earlier runs wrote, still in the data
    notes: Sequence[str] = ()  # what a user should know


def make_project(
    folder: Path,
    images: Path,
    reader: Masks,
    classes: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    val_share: float = 0.2,
    test_share: float = 0,
    group: str = "",
) -> Project:
    """Write the images and the label maps of a project to `folder`/data.

    `images` is searched with its subfolders; if these are `train`, `val` and `test`, they are the
    splits. `ignored` has values, colors (#rrggbb) or names. Photos whose names share what * in
    `group` stands for are in one split, and so are copies of a photo.

    Raises:
        ValueError: if no pair is found, or the values do not fit the classes.
    """
    data, state_file = folder / "data", folder / "data/classes.json"
    pairs, left_out, reader = find_pairs(images, reader, data)
    for pair, found in zip(pairs, reader.prepare([p.annotation for p in pairs]), strict=True):
        pair.labels = found
    before = json.loads(state_file.read_text()) if state_file.is_file() else None
    ignored = [*ignored, *(text for text in reader.ignored if text in reader.labels.values())]
    try:
        given = classes or (None if before else reader.names)
        names, labels, notes = update_classes(before, reader.labels, given, ignored)
    except ValueError as error:
        raise ValueError(f"{error}; {reader.hint}" if reader.hint else str(error)) from None
    notes += [*reader.notes, *filter(None, [reader.hint if not classes else ""])]
    given = {pair.split for pair in pairs}
    shares = {s: n for s, n in (("test", test_share), ("val", val_share)) if n and s not in given}
    data.mkdir(parents=True, exist_ok=True)
    for left in data.glob("converted_*"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="converted_", dir=data) as label_maps:
        usable = []
        for i, pair in enumerate(progress(pairs, "converting", len(pairs))):
            pair.label = Path(label_maps, f"{i}.png")
            try:
                _look_at(pair)
                label = _convert(pair, reader, labels)
            except (LabelError, UnreadableFileError) as error:
                left_out.append(str(error))
                continue
            Image.fromarray(label).save(pair.label)
            pair.counts = np.bincount(label.ravel(), minlength=len(names))
            usable.append(pair)
        notes += _choose_splits(usable, shares, data, group)
        splits = [s for s in SPLITS if s != "test" or any(pair.split == s for pair in usable)]
        summaries = {split: Summary(split, tuple(names)) for split in splits}
        gone = sorted(link for link in data.glob("images/**/*") if not link.exists())
        for link in gone:
            link.unlink()
        if gone:
            notes.append(
                f"{len(gone)} links to photos that are gone are removed, such as {gone[0]}"
            )
        for pair in progress(usable, "writing", len(usable)):
            label_file = pair.label_file(data, pair.split)
            _write_pair(pair, data)
            sample = dict(img_path=str(pair.image_file(data)), seg_map_path=str(label_file))
            summaries[pair.split].add(sample, pair.size[::-1], pair.counts, pair.small)
    if empty := [split for split in splits if not summaries[split].pairs]:
        needed = "a project needs at least two pairs or groups, and a folder train if val has one"
        reason = "; ".join([needed, *left_out[-1:]])
        raise ValueError(f"{empty[0]}: no pair is usable; {reason}")
    write_text(json.dumps(dict(classes=names, labels=labels), indent=1), state_file)
    write_text("".join(f"{line}\n" for line in left_out), folder / "left_out.txt")
    used = {pair.image_file(data) for pair in usable}
    earlier = [path for path in files_below(data / "images") if path not in used]
    colors = {labels[text]: rgb for text, rgb in reader.colors.items()}
    first = pairs[0].annotation
    example = [pairs[0].image, first.path, *first.objects]
    summed = [*summaries.values()]
    return Project(labels, colors, summed, left_out, example, earlier, notes)


def _look_at(pair: Pair) -> None:
    """Set the size, the orientation and a small version of a pair's image."""
    path = str(pair.image)
    pixels = read(read_bytes(path), path)
    pair.small, tag = small_version(pixels.values, pixels.missing), pixels.orientation
    height, width, count = pixels.upright().values.shape
    pair.orientation, pair.size = tag, (height, width)
    is_photo = count - len(pixels.alpha) in (1, 3) and pixels.values.dtype in (bool, np.uint8)
    if tag != 1 and not is_photo:  # Pillow cannot turn it
        raise UnreadableFileError(f"{path}: has an orientation tag ({tag}); save it upright")


def _choose_splits(
    pairs: Sequence[Pair], shares: Mapping[str, float], data: Path, group: str
) -> list[str]:
    """Set the splits that no folder names, and return notes; `splits.json` has the earlier ones.

    `shares` are of splits without a folder. If there are any, the folder of train is divided.
    """
    pool = [pair for pair in pairs if not pair.split or (shares and pair.split == "train")]
    if group and not pool:
        raise ValueError(f"--group {group}: the folders train and val are the splits")
    names = [pair.name for pair in pool]
    copies = list(find_copies([pair.small for pair in pool]))
    links = [*copies, *(find_groups(names, group) if group else ())]
    numbers = connect(len(pool), links)
    sizes = np.bincount(numbers, minlength=1)
    most = len(pool) if group else (1 - sum(shares.values())) * len(pool)
    groups = {n: str(i) for n, i in zip(names, numbers, strict=True) if 1 < sizes[i] <= most}
    state_file = data / "splits.json"
    if state_file.is_file():
        fixed = json.loads(state_file.read_text())
    else:  # of a version without it, the first folder with the label map
        fixed = {
            pair.name: split
            for pair in pool
            for split in reversed(SPLITS)
            if pair.label_file(data, split).is_file()
        }
    chosen = choose(names, {pair.name: pair.labels for pair in pool}, shares, fixed, groups)
    for pair in pool:
        pair.split = chosen[pair.name]
    if pool:
        write_text(json.dumps(fixed | chosen, indent=1), state_file)
    alike = [(j, i) for i, others in copies for j in others if pool[i].split == pool[j].split]
    if not alike:
        return []
    example = " of ".join(str(pool[i].image) for i in alike[0])
    return [
        f"{len({j for j, _ in alike})} of {len(pool)} images are copies of another one or nearly "
        f"so, also flipped or turned, such as {example}; copies are kept in one split"
    ]


def _convert(pair: Pair, reader: Masks, labels: Mapping[str, int]) -> np.ndarray:
    """Return the label map of a pair, upright (H, W).

    Raises LabelError if the annotation cannot be read or the sizes differ.
    """
    tag, upright = pair.orientation, pair.size
    sizes = [upright, upright[::-1]] if tag >= 5 else [upright]
    values = reader.read(pair.annotation, sizes)
    table = np.zeros(max(reader.labels) + 1, np.uint8)
    table[list(reader.labels)] = [labels[label] for label in reader.labels.values()]
    label = table[values]  # (H, W)
    if (label == IGNORED).all():
        raise LabelError(f"{pair.annotation.path}: all its pixels are ignored")
    if tag != 1 and label.shape != upright:
        label = declared(label, orientation=tag).upright().values[..., 0]
    return label


def _write_pair(pair: Pair, data: Path) -> None:
    """Write the image and the label map of a pair to their split."""
    target = pair.image_file(data)
    # Of an earlier run, maybe with another photo.
    for suffix in (*IMAGE_SUFFIXES, *map(str.upper, IMAGE_SUFFIXES), target.suffix):
        (data / f"images/{pair.split}/{pair.name}{suffix}").unlink(missing_ok=True)
    if pair.orientation == 1:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.symlink_to(pair.image.resolve())
        except OSError:  # a file system without links
            shutil.copyfile(pair.image, target)
    else:  # written upright, because `image_demo` shows photos to the trained model upright
        with Image.open(pair.image) as image, atomic_write(target) as part:
            ImageOps.exif_transpose(image).save(part, image.format, quality=95)
    with atomic_write(pair.label_file(data, pair.split)) as part:
        shutil.copyfile(pair.label, part)
