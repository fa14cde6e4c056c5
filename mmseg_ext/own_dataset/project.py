"""The data of a project for your own images: pairs of images and label maps in `data/`.

All pairs are read once, then the classes and the splits are chosen, then all files are written: an
annotation waits as an index map, and the class of each index makes it a label map. Sources never
change. A second run writes all pairs again. It follows `classes.csv` and `splits.json`, which the
first run wrote.
"""

import contextlib
import io
import json
import shlex
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.errors import LabelError, UnreadableFileError, join_names
from mmseg_ext.images.files import files_below, read, read_bytes
from mmseg_ext.images.values import IMAGE_SUFFIXES, any_size, other_photos, turned
from mmseg_ext.own_dataset.annotations.reader import (
    BACKGROUND,
    IndexMap,
    Reader,
    draw_objects,
    legend_of_objects,
)
from mmseg_ext.own_dataset.classes import IGNORED, Classes, choose_classes, read_classes
from mmseg_ext.own_dataset.copies import (
    add_notes_on_copies,
    find_item_copies,
    small_label,
    small_version,
)
from mmseg_ext.own_dataset.item import Item, Notes, Rank, evenly, usable
from mmseg_ext.own_dataset.label_maps import read_label
from mmseg_ext.own_dataset.pairs import list_items, pair
from mmseg_ext.own_dataset.splits import (
    SPLITS_FILE,
    SplitRule,
    apply_lists,
    choose_splits,
    earlier_splits,
    label_file,
)
from mmseg_ext.own_dataset.summary import FEW_PIXELS, Split, add_notes_on_pixels
from mmseg_ext.terminal import progress

UPRIGHT = 1  # EXIF's orientation
_LABELS_COMPARED = 20  # with those of an earlier run


@dataclass
class Project:
    """The data of a project."""

    items: Sequence[Item]  # the photos; those with a problem are left out
    classes: Classes
    splits: Sequence[Split]  # train, val and, if it has photos, test
    notes: Notes


def make_project(
    folder: Path,
    images: Path,
    reader: Reader,
    rule: SplitRule,
    names: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
) -> Project:
    """Write the images and the label maps of a project to `folder`/data.

    `images` is searched with its subfolders; if these are `train`, `val` and `test`, they are the
    splits. `names` are the names of the classes, and `ignored` has values, colors (#rrggbb) or
    names. The rule is for images whose split is in no folder.

    Raises:
        ValueError: if no pair is found, or the values do not fit the classes.
    """
    data, notes = folder / "data", Notes()
    items = list_items(images, reader, data)
    masks = {path for annotation in reader.annotations for path in annotation.paths}
    others = other_photos(path for path in files_below(images) if path not in masks)
    notes.add(Rank.SCORE, others, images)
    for line in pair(items, reader):
        notes.add(Rank.LEFT_OUT, line)
    earlier = earlier_splits(usable(items), data)
    apply_lists(items, rule.lists, images, earlier, notes)
    named = {item.split for item in usable(items)}  # by folders and lists
    with tempfile.TemporaryDirectory(prefix="mmseg_ext_") as maps:  # a percent of the pixels
        _read_items(items, reader, Path(maps), notes)
        classes = _find_classes(items, reader, names, ignored, data, notes)
        _find_turned(usable(items), notes)
        copies, cameras = find_item_copies(usable(items))
        by_name = choose_splits(usable(items), rule, named, earlier, copies, notes)
        are_kept = rule.keeps_copies and "val" not in named
        add_notes_on_copies(usable(items), copies, cameras, notes, are_kept)
        splits = _split(items, classes, data)
        # Before any file, so a run that is killed keeps them.
        if by_name:
            write_text(json.dumps(by_name, indent=1), data / SPLITS_FILE)
        classes.write(data)
        _note_on_changed(usable(items), classes.names, notes)
        _write_items(usable(items), data, notes)
    add_notes_on_pixels(splits, notes, classes.numbers)
    for item in items:
        if item.problem:
            notes.add(Rank.LEFT_OUT, item.problem)
    return Project(items, classes, splits, notes)


def _read_items(items: Sequence[Item], reader: Reader, maps: Path, notes: Notes) -> None:
    """Read the image and the annotation of each item; index maps are written to `maps`.

    An item that cannot be read gets a problem. Notes of the annotations have the rank `LABELS`.
    """
    items = usable(items)
    for number, item in enumerate(progress(items, "reading", len(items))):
        try:
            texts = _read_item(item, reader, maps / str(number))
        except (LabelError, UnreadableFileError) as error:
            item.problem = str(error)
            continue
        for text in texts:
            where = f"{item.annotation.path} {item.annotation.image_name}".rstrip()
            notes.add(Rank.LABELS, text, where)
    if not usable(items):
        among = f"none of {len(items)} pairs can be read, the first: " if len(items) > 1 else ""
        raise ValueError(f"{among}{items[0].problem}")


def _read_item(item: Item, reader: Reader, file: Path) -> Sequence[str]:
    """Read an item, write its index map to `file`, and return notes on its annotation."""
    path = str(item.image)
    pixels = read(read_bytes(path), path)
    item.orientation = pixels.orientation
    upright = pixels.upright().values
    height, width, channels = upright.shape
    is_8_bits = pixels.values.dtype in (bool, np.uint8)
    is_photo = is_8_bits and channels - len(pixels.alpha) in (1, 3)
    if item.orientation != UPRIGHT and not is_photo:  # Pillow cannot turn it
        tag = item.orientation
        raise UnreadableFileError(f"{path}: has an orientation tag ({tag}); save it upright")
    item.size = height, width
    item.small = small_version(upright, pixels.missing)
    step = 1 + max(height, width) // 500  # all values of large images would take long
    item.colors = len(np.unique(pixels.values[::step, ::step, 0]))
    about_photo = pixels.frames_note()
    del pixels, upright  # a large image does not stay in memory while its mask is read
    sizes = [(height, width)]
    if item.orientation >= 5:  # the sides are exchanged; a mask can have either size
        sizes.append((width, height))
    if item.annotation.is_missing:
        note = ("a photo without an annotation is all background",)
        found = IndexMap([BACKGROUND], np.zeros(sizes[0], np.uint8), note)
    else:
        found = reader.read(item.annotation, sizes)
    if reader.objects:
        if len(found.values) > 0xFFFF:
            text = f"{len(found.values)} values; objects have up to 65535 numbers or colors"
            raise LabelError(f"{item.annotation.path}: {text}; save one for each object")
        found = draw_objects(found, reader.ignored)
    if not item.annotation.is_missing:
        item.small_label = small_label(found.indices)
    item.map = found.store(item.annotation, file)
    return [*found.notes, f"its photo {about_photo}"] if about_photo else found.notes


def _find_turned(items: Sequence[Item], notes: Notes) -> None:
    """Set `is_turned` of the items, and add a note on those whose sizes do not show it.

    The size of an annotation shows it for a photo on its side. Other rotated photos, such as those
    upside down, follow these if they agree.
    """
    on_side, hidden = [], []
    for item in items:
        item.is_turned = item.map.shape != item.size
        if item.orientation == UPRIGHT or item.annotation.is_missing:
            continue
        if item.orientation >= 5 and item.size[0] != item.size[1]:
            on_side.append(item.is_turned)
        else:
            hidden.append(item)
    if on_side and all(on_side):
        for item in hidden:
            item.is_turned = True
        hidden = []
    for item in items:
        if item.is_turned:
            item.small_label = turned(item.small_label, item.orientation)
    if hidden and (not on_side or any(on_side)):
        notes.add(
            Rank.LABELS,
            f"{len(hidden)} photos have an EXIF orientation that the sizes of their annotations do "
            f"not show, such as {hidden[0].image}; the annotations are not turned; if they do not "
            "fit in preview.png, remove the orientation, such as with exiftool -Orientation= FILE",
        )


def _find_classes(
    items: Sequence[Item],
    reader: Reader,
    names: Sequence[str] | None,
    ignored: Sequence[str],
    data: Path,
    notes: Notes,
) -> Classes:
    """Return the classes of the values that items have, and set each item's.

    An item of only ignored pixels gets a problem. Notes of the rank `LABELS` are of annotations.
    """
    read = usable(items)
    maps = [item.map for item in read]
    legend = legend_of_objects(maps) if reader.objects else reader.describe(maps)
    shown = {value for part in maps for value, n in zip(part.values, part.counts, strict=True) if n}
    if len(shown) < 2:  # a problem or a note can tell why there is only one
        problems = [item.problem for item in items if item.annotation and item.problem]
        about_maps = [str(note) for note in notes if note.rank == Rank.LABELS]
        legend.hint = next(iter([*problems, *about_maps]), legend.hint)
    is_new = read_classes(data) is None
    if legend.problem and is_new and not (names or legend.names):
        raise ValueError(legend.problem)
    try:
        classes = choose_classes(legend, reader, names, ignored, data, notes)
    except ValueError as error:
        pixels: Counter[str] = Counter()
        for item in read:
            for value, count in zip(item.map.values, item.map.counts, strict=True):
                pixels[legend.texts[value]] += int(count)
        least = FEW_PIXELS * pixels.total()
        few = [text for text in legend.labels.values() if pixels[text] < least]
        where = "" if is_new else f"{data.parent}: "
        hint = f"; {legend.hint}" if legend.hint else ""
        strays = f"; to ignore all values of few pixels: --ignore {shlex.join(few)}" if few else ""
        raise ValueError(f"{where}{error}{hint}{strays}") from None
    for text in legend.notes:
        notes.add(Rank.LABELS, text)
    # Photos with as few colors as masks are masks, for example of one class.
    like_masks = [item for item in read if item.colors <= len(item.map.values)]
    if 2 * len(like_masks) > len(read):
        notes.add(
            Rank.LABELS,
            f"{len(like_masks)} of {len(read)} photos, such as {like_masks[0].image}, have no "
            "more colors than their annotations; if they are masks, give only the folder of photos "
            "to --images",
        )
    if legend.hint and not names:
        notes.add(Rank.LABELS, legend.hint)
    for item in read:
        texts = [legend.texts[value] for value in item.map.values]
        item.texts = frozenset(texts)
        item.classes = np.array([classes.numbers[text] for text in texts], np.uint8)
        item.counts = np.zeros(IGNORED + 1, int)
        np.add.at(item.counts, item.classes, item.map.counts)
        if item.counts[IGNORED] == item.counts.sum():
            item.problem = f"{item.annotation.path}: all its pixels are ignored"
    shown = np.flatnonzero(np.sum([item.counts[:IGNORED] for item in read], axis=0))
    if len(shown) < 2:
        only = join_names([classes.names[i] for i in shown]) or "none"
        hint = legend.hint or "a training needs two classes"
        raise ValueError(
            f"{read[0].annotation.path}: of the classes {join_names(classes.names)} this and all "
            f"other annotations show only {only}; {hint}"
        )
    return classes


def _split(items: Sequence[Item], classes: Classes, data: Path) -> list[Split]:
    """Return train, val and, if it has items, test; set the items' files in a project's data."""
    splits = []
    for name in SPLITS:
        own = [item for item in usable(items) if item.split == name]
        if not own and name != "test":
            problems = [item.problem for item in items if item.problem]
            needed = "a project needs at least two pairs or groups, and a folder train if val has"
            raise ValueError(
                "; ".join([f"{name}: no pair is usable; {needed} one", *problems[-1:]])
            )
        for item in own:
            image = data / f"images/{name}/{item.name}{item.image.suffix}"
            label = label_file(data, name, item.name)
            item.sample = {"img_path": str(image), "seg_map_path": str(label)}
        if own:
            splits.append(Split(name, classes.names, own))
    return splits


def _write_items(items: Sequence[Item], data: Path, notes: Notes) -> None:
    """Write the images and label maps to their splits.

    Images with an item's name are replaced; they can be of another photo. Pairs that only earlier
    runs wrote stay, and links to photos that are gone are removed, both with a note.
    """
    gone = sorted(link for link in data.glob("images/**/*") if not link.exists())
    for link in gone:
        link.unlink()
    if gone:
        text = f"{len(gone)} links to photos that are gone are removed, such as {gone[0]}"
        notes.add(Rank.HINT, text)
    earlier = defaultdict(list)  # by their paths without suffixes
    for path in data.glob("images/**/*"):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            earlier[path.with_suffix("")].append(path)
    targets = {Path(item.sample["img_path"]).with_suffix("") for item in items}
    for item in items:  # an edit of the splits can move it
        for split in SPLITS:
            other = data / f"images/{split}/{item.name}"
            if other in targets:
                continue
            for path in earlier.get(other, ()):
                is_copy = item.orientation != UPRIGHT and not path.is_symlink()
                if is_copy or path.resolve() == item.image.resolve():
                    path.unlink()
                    label_file(data, split, item.name).unlink(missing_ok=True)
                    del earlier[other]
                    break
    for item in progress(items, "writing", len(items)):
        image, label_path = Path(item.sample["img_path"]), Path(item.sample["seg_map_path"])
        for path in earlier.pop(image.with_suffix(""), ()):
            path.unlink()
        _write_image(item, image)
        with atomic_write(label_path) as file:
            Image.fromarray(_label_map(item)).save(file, "PNG")
    left = sorted(path for paths in earlier.values() for path in paths)
    if left:
        notes.add(
            Rank.SCORE,
            f"training also uses {len(left)} pairs of earlier runs, such as {left[0]}; if it "
            "should not, delete these files and their label maps",
        )


def _label_map(item: Item) -> np.ndarray:
    """Return the label map of an item, (H, W) uint8, turned as its image."""
    label = item.classes[item.map.load()]
    if item.is_turned:
        label = turned(label, item.orientation)
    return label


def _note_on_changed(items: Sequence[Item], names: Sequence[str], notes: Notes) -> None:
    """Add a note if classes have other pixels than in the last run.

    Such an edit of `classes.csv` can leave all names, so nothing else shows that a trained
    checkpoint means other classes. Up to twenty label maps are compared before they are replaced.
    """
    moved = np.zeros((IGNORED + 1, IGNORED + 1), int)  # pixels of each former and present class
    written = [item for item in items if Path(item.sample["seg_map_path"]).is_file()]
    for item in evenly(written, _LABELS_COMPARED):
        label = _label_map(item)
        with contextlib.suppress(UnreadableFileError):  # it is replaced in any case
            former = read_label(item)
            if former.shape == label.shape and former.dtype == label.dtype:
                step = 1 + max(label.shape) // 500
                pairs = former[::step, ::step].astype(int) << 8 | label[::step, ::step]
                moved += np.bincount(pairs.ravel(), minlength=moved.size).reshape(moved.shape)
    had, has = moved.any(1), moved.any(0)  # pixels
    changed = np.flatnonzero(had & has & (moved.diagonal() == 0)).tolist()
    if own := [str(names[i]) for i in changed if i != IGNORED]:
        text = f"{join_names(own)}: no pixel of the last run is left, others came; a checkpoint"
        notes.add(Rank.SCORE, f"{text} trained before means other classes, so train again")


def _write_image(item: Item, target: Path) -> None:
    """Link to the image of an item; write it upright if it is not."""
    if item.orientation != UPRIGHT:  # `image_demo` shows photos to the trained model upright
        with any_size():  # not by its path, with which Pillow mixes the rows of some TIFFs
            image = Image.open(io.BytesIO(item.image.read_bytes()))
        with image, atomic_write(target) as file:
            # The best quality: `image_demo` reads the original.
            options: Any = {"quality": 100, "subsampling": 0}
            if image.format == "WEBP":
                options = {"lossless": True}
            ImageOps.exif_transpose(image).save(file, image.format, **options)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.symlink_to(item.image.resolve())
    except OSError:  # a file system without links
        with atomic_write(target) as file:
            shutil.copyfile(item.image, file)
