"""Photos and annotations: which files are photos, and the annotation of each.

The files of both can share a folder. `pair` compares their names (`matching`).
"""

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.errors import join_names
from mmseg_ext.images.files import comparable
from mmseg_ext.images.values import IMAGE_SUFFIXES
from mmseg_ext.own_dataset.annotations.annotation import Annotation
from mmseg_ext.own_dataset.annotations.formats import format_of, require_no_other
from mmseg_ext.own_dataset.annotations.reader import Reader
from mmseg_ext.own_dataset.item import Item, usable
from mmseg_ext.own_dataset.matching import (
    Key,
    by_class,
    fit,
    keyed_files,
    masks_among,
    split_in,
)
from mmseg_ext.own_dataset.preview import PREVIEW

_UNCLEAR = "no annotation fits its name, or several do"
_MISSING = "no annotation; if it shows only background, use --background-without-annotation"


def list_items(folder: Path, reader: Reader, data: Path) -> list[Item]:
    """Return the photos in a folder, or of a pattern; `data` is that of the project.

    Photos, files that an earlier run wrote, and masks of the kind that VOC's other folder has are
    dropped from the annotations of the reader.

    Raises:
        ValueError: if there are no photos or no annotations.
    """
    project = data.parent.absolute()  # can be in the folder of the images
    results = {project / "data", project / "work_dir", project / PREVIEW}

    def is_source(path: Path) -> bool:
        return results.isdisjoint([path.absolute(), *path.absolute().parents])

    def is_of_kind(path: Path) -> bool:
        return reader.other_folder not in path.parts

    annotations = [annotation for annotation in reader.annotations if is_source(annotation.path)]
    of_kind = [annotation for annotation in annotations if is_of_kind(annotation.path)]
    annotations = of_kind or annotations
    keys = keyed_files(folder)
    images = {path for path in keys if is_of_kind(path) and is_source(path)}
    masks = {annotation.path for annotation in annotations}
    # Both flags can name one folder, or one of the folders contains the other. Then files are
    # listed as images and as masks.
    if masks > images:
        masks -= images
    elif masks == images:
        masks = masks_among(images, folder)
    elif reader.is_pattern and masks < images and folder.is_dir():
        # The pattern of some masks leaves out the others, if all of them differ from the images.
        among = masks_among(images, folder)
        masks = among if masks <= among else masks
    images -= masks
    is_among_images = bool(annotations)
    annotations = [each for each in annotations if each.path not in images]
    if not images or not annotations:
        what, suffixes = ("annotation", reader.suffixes) if images else ("image", IMAGE_SUFFIXES)
        todo = f"save each {what} as {', '.join(suffixes)}"
        if images and is_among_images:
            todo = "names do not tell masks from images; use folders, such as images and masks"
            if patterns := _patterns_of_masks(images):
                todo = f"names do not tell masks from images; give {' or '.join(patterns)}"
            else:
                require_no_other(folder)  # nothing, if it is a pattern
        there_are = f"there are {len(images)} images and {len(annotations)} annotations"
        raise ValueError(f"{folder}: {there_are}; {todo}")
    reader.annotations = annotations
    return [Item(path, key) for path, key in keys.items() if path in images]


def _patterns_of_masks(paths: Collection[Path]) -> list[str]:
    """Return the flag for each ending, such as `_mask.png`, that half of the names have once more.

    Then `a.png`, `a_mask.png` and `a_color.png` are in one folder.
    """
    stems = {path.with_suffix("") for path in paths}
    folders: dict[str, set[Path]] = defaultdict(set)
    count = Counter()
    for path in paths:
        for place in re.finditer(r"[\W_]+(?=.*[^\W\d_])", path.stem):
            if path.with_name(path.stem[: place.start()]) in stems:
                ending = path.name[place.start() :]
                folders[ending].add(path.parent)
                count[ending] += 1
                break
    shown = len(paths) - count.total()
    patterns = []
    for ending, own in sorted(folders.items()):
        if 2 * count[ending] >= shown:
            patterns.append(f"--masks {shlex.quote(f'{os.path.commonpath(own)}/*{ending}')}")
    return patterns


def pair(items: Sequence[Item], reader: Reader) -> list[str]:
    """Set the annotation and the split of each item, or its problem.

    Returns:
        A line for each annotation that no item uses.

    Raises:
        ValueError: if there is no pair, if several masks of one class each fit an item, or if an
            annotation without an image is perhaps that of an item that would become background.
    """
    annotations = reader.annotations
    if reader.can_have_classes and len(annotations) > len(items):
        _require_one_mask_each(items, annotations)
    of_item, unused = _find_annotations(items, annotations, reader.names_images)
    repeated = _repeated_names(items, annotations)
    if len(unused) == len(annotations):
        raise ValueError(_explain_no_pair(items, reader, repeated))
    annotated_names = {comparable(annotation.key.path.name) for annotation in annotations}
    first: dict[Key, Path] = {}  # the first image of each split and name
    for item, own in zip(items, of_item, strict=True):
        is_named = comparable(item.key.path.name) in annotated_names
        is_missing = reader.has_background and not own and not is_named
        if own:
            paths = tuple(chain.from_iterable(annotation.paths for annotation in own))
            classes = tuple(chain.from_iterable(annotation.classes for annotation in own))
            item.annotation = own[0]._replace(paths=paths, classes=classes)
        elif is_missing and reader.missing_is_background:
            item.annotation = Annotation(item.key, (item.image,), is_missing=True)
        else:
            reason = repeated.get(item.key.path.name, _UNCLEAR)
            item.problem = f"{item.image}: {_MISSING if is_missing else reason}"
            continue
        item.split = item.key.split or item.annotation.key.split
        other = first.setdefault(Key(item.split or "train", item.name), item.image)
        if other != item.image:
            item.problem = f"{item.image}: {other} has the same name"
    without_image = [annotations[number] for number in unused]
    _require_no_objects(items, without_image, reader)
    _set_splits_in_names(usable(items))
    return [f"{each.path}: no image {each.image_name}".rstrip() for each in without_image]


def _find_annotations(
    items: Sequence[Item], annotations: Sequence[Annotation], exact: bool
) -> tuple[list[list[Annotation]], list[int]]:
    """Return the annotations of each item, and the indices of those that fit none for certain.

    Several are certain if they show its objects, because they are alone with it in a folder, or
    parts of a class, because their names differ only in the second * of a pattern.
    """
    keys = [item.key for item in items]
    of_classes: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, annotation in enumerate(annotations):  # each class has its own usual words
        of_classes[annotation.classes].append(number)
    folders = Counter(key.path.parent for key in keys)
    of_item: list[list[Annotation]] = [[] for _ in items]
    unused = set(range(len(annotations)))
    for classes, numbers in of_classes.items():
        fitting: dict[int, list[int]] = defaultdict(list)
        found = fit(keys, [annotations[number].key for number in numbers], exact)
        for number, i in zip(numbers, found, strict=True):
            if i is not None:
                fitting[i].append(number)
        for i, several in fitting.items():
            own = {annotations[number].key for number in several}
            folder = keys[i].path.parent
            is_alone = folder.name and str(folder) not in SPLITS and folders[folder] == 1
            are_in_it = all(key.path.parent == folder for key in own)
            are_objects = is_alone and are_in_it and len(own) == len(several)
            if len(several) == 1 or are_objects or (classes and len(own) == 1):
                of_item[i] += [annotations[number] for number in several]
                unused.difference_update(several)
    return of_item, sorted(unused)


def _require_one_mask_each(items: Sequence[Item], annotations: Sequence[Annotation]) -> None:
    """Raise ValueError if the names of masks tell several classes for images, with the flag."""
    masks = [(annotation.path, annotation.key) for annotation in annotations]
    classes, image, several = by_class([item.key for item in items], masks)
    if not classes:
        return
    flags = [f"{name}={shlex.quote(source)}" for name, source in classes.items()]
    paths = join_names(list(map(str, several)))
    raise ValueError(
        f"{items[image].image}: {len(several)} masks fit it, {paths}; "
        f"if each is of one class, use --masks {' '.join(flags)}; if one has all classes, give its "
        f"folder or pattern, such as --masks {shlex.quote(next(iter(classes.values())))}"
    )


def _require_no_objects(
    items: Sequence[Item], without_image: Sequence[Annotation], reader: Reader
) -> None:
    """Raise ValueError if objects without an image are perhaps those of a photo without any."""
    missing = [item for item in usable(items) if item.annotation and item.annotation.is_missing]
    for annotation in without_image if missing else ():
        if reader.has_objects(annotation):
            name = annotation.image_name or annotation.path
            raise ValueError(
                f"{missing[0].image}: would become background, but the objects of {name} have no "
                "image; rename one of the two, or leave out --background-without-annotation"
            )


def _set_splits_in_names(items: Sequence[Item]) -> None:
    """Set splits that are words of folders, such as test in `test_data`.

    Without a train, test is perhaps another thing's name.
    """
    words = []
    for item in items:
        folders = item.name.split("/")[:-1]
        words.append(next(filter(None, map(split_in, folders)), None))
    for item, word in zip(items, words, strict=True):
        if "train" in words:
            item.split = item.split or word


def _repeated_names(items: Sequence[Item], annotations: Sequence[Annotation]) -> dict[str, str]:
    """Return a line on each name, without folders, that several images or annotations have."""
    lines = {}
    images = [(item.image, item.key) for item in items]
    annotated = [(annotation.path, annotation.key) for annotation in annotations]
    for kind, files in (("images", images), ("annotations", annotated)):
        paths: dict[str, list[str]] = defaultdict(list)
        for path, key in files:
            paths[key.path.name].append(str(path))
        for name, same in paths.items():
            if len(same) > 1:
                found = f"{len(same)} {kind} are called {name} ({join_names(same)})"
                lines[name] = f"{found}; give one folder"
    return lines


def _explain_no_pair(items: Sequence[Item], reader: Reader, repeated: Mapping[str, str]) -> str:
    """Return the reason why there is no pair, and the next step."""
    item, annotation = items[0], reader.annotations[0]
    reason = f"compare {item.image} with {annotation.image_name or annotation.path}"
    if annotation.image_name:  # no pattern changes what a file has
        todo = f"rename photos, or correct their names in {annotation.path}"
    else:
        ending = annotation.path.suffix
        todo = (
            "rename them, or give patterns whose * are the parts to compare, such as --images "
            f"'DIR/*_photo{item.image.suffix}' {reader.flag} 'DIR/*_label{ending}'"
        )
    if item.key.path.name in repeated:
        reason = repeated[item.key.path.name]
    if found := format_of(annotation.path, reader.flag):
        reason, todo = f"{annotation.path} {found}", ""
    where = os.path.commonpath([item.image.parent for item in items])
    return f"{where}: no image fits exactly one annotation; {reason}" + (
        f"; {todo}" if todo else ""
    )
