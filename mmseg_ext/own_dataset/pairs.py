"""The pairs of a project: each image with its annotation.

`find_sources` lists the files of both sides, which can share a folder. `pair_sources` compares
their names (`matching`). Masks of one class each, several for an image, become one annotation.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mmseg_ext.errors import join_names
from mmseg_ext.images.values import IMAGE_SUFFIXES
from mmseg_ext.own_dataset.annotations.annotation import Annotation
from mmseg_ext.own_dataset.annotations.class_masks import problem_of
from mmseg_ext.own_dataset.annotations.formats import format_of
from mmseg_ext.own_dataset.annotations.reader import Reader
from mmseg_ext.own_dataset.matching import (
    Key,
    keyed_files,
    masks_among,
    match,
    match_classes,
    split_in,
)
from mmseg_ext.own_dataset.preview import PREVIEW

_UNCLEAR = "no annotation fits its name, or several do"
_MISSING = "no annotation; if it shows only background, use --background-without-annotation"


@dataclass
class Sources:
    """The files of a project's user."""

    folder: Path  # of the images, or their pattern
    images: Mapping[Path, Key]
    annotations: Sequence[Annotation]


@dataclass
class Pair:
    """An image and its annotation."""

    image: Path
    annotation: Annotation
    name: str  # of its files in the project
    split: str | None  # that a folder, a file of annotations or a list names
    list_file: Path | None = None  # the list that names the image


def find_sources(folder: Path, reader: Reader, data: Path) -> Sources:
    """Return the images in a folder, or of a pattern, and the annotations, but not `data`."""
    project = data.parent.absolute()  # can be in the folder of the images
    results = {project / "data", project / "work_dir", project / PREVIEW}

    def is_source(path: Path) -> bool:
        return results.isdisjoint([path.absolute(), *path.absolute().parents])

    def is_of_kind(path: Path) -> bool:
        return reader.other_folder not in path.parts

    annotations = [annotation for annotation in reader.annotations if is_source(annotation.path)]
    of_kind = [annotation for annotation in annotations if is_of_kind(annotation.path)]
    annotations = of_kind or annotations
    images = keyed_files(folder)
    found = set(filter(is_of_kind, filter(is_source, images)))
    masks = _masks_of(folder, found, {annotation.path for annotation in annotations}, reader)
    kept = found - masks
    images = {path: key for path, key in images.items() if path in kept}
    annotations = [annotation for annotation in annotations if annotation.path not in images]
    return Sources(folder, images, annotations)


def _masks_of(folder: Path, images: set[Path], masks: set[Path], reader: Reader) -> set[Path]:
    """Return the masks among files that are listed as images, as masks, or as both.

    Folders can be the same, or one of them contains the other.
    """
    if masks > images:  # the folder of the masks has the images, too
        return masks - images
    pattern_of_some = reader.is_pattern and masks < images and folder.is_dir()
    if masks != images and not pattern_of_some:
        return masks
    among = masks_among(images, folder)
    # The pattern of some masks leaves out the others, if all of them differ from the images.
    return among if masks == images or masks <= among else masks


def pair_sources(sources: Sources, reader: Reader) -> tuple[list[Pair], list[str]]:
    """Return the pairs, and a line for each file that is in none.

    Raises:
        ValueError: if there is no pair.
    """
    annotations, left_out, problem = sources.annotations, [], ""
    if reader.can_have_classes:
        annotations, left_out, problem = _join_classes(sources)
    keys = [annotation.key for annotation in annotations]
    fits = match(list(sources.images.values()), keys, exact=reader.names_images)
    pairs: list[Pair] = []
    used: set[int] = set()
    names = {key.path.name for key in keys}
    repeated = _repeated_names(sources, annotations)
    first: dict[Key, Path] = {}  # the first image of each split and name
    for (image, key), numbers in zip(sources.images.items(), fits, strict=True):
        used.update(numbers)
        fitting = [annotations[number] for number in numbers]
        can_be_missing = reader.has_background and key.path.name not in names
        is_missing = can_be_missing and not numbers
        if is_missing and reader.missing_is_background:
            fitting = [Annotation(key, (image,), is_missing=True)]
        elif not numbers:
            reason = repeated.get(key.path.name, _UNCLEAR)
            left_out.append(f"{image}: {_MISSING if is_missing else reason}")
            continue
        pair = _make_pair(image, key, fitting)
        place = Key(pair.split or "train", pair.name)
        if place in first:
            left_out.append(f"{image}: {first[place]} has the same name")
            continue
        first[place] = image
        pairs.append(pair)
    pairs.sort(key=lambda pair: pair.annotation.is_missing)  # a message shows the first pair
    if not used:
        raise ValueError(_explain_no_pair(sources, annotations, reader, repeated, problem))
    _set_splits_in_names(pairs)
    for number, annotation in enumerate(annotations):
        if number not in used:
            left_out.append(f"{annotation.path}: no image {annotation.image_name}".rstrip())
    return pairs, left_out


def _repeated_names(sources: Sources, annotations: Sequence[Annotation]) -> dict[str, str]:
    """Return a line on each name, without folders, that several images or annotations have."""
    lines = {}
    annotated = [(annotation.path, annotation.key) for annotation in annotations]
    for kind, files in (("images", sources.images.items()), ("annotations", annotated)):
        paths: dict[str, list[str]] = defaultdict(list)
        for path, key in files:
            paths[key.path.name].append(str(path))
        for name, same in paths.items():
            if len(same) > 1:
                found = f"{len(same)} {kind} are called {name} ({join_names(same)})"
                lines[name] = f"{found}; give one folder"
    return lines


def _make_pair(image: Path, key: Key, fitting: Sequence[Annotation]) -> Pair:
    """Return an image with the annotation that fits, or with several masks of its objects."""
    first = fitting[0]
    paths = tuple(chain.from_iterable(annotation.paths for annotation in fitting))
    return Pair(image, first._replace(paths=paths), key.name, key.split or first.key.split)


def _set_splits_in_names(pairs: Sequence[Pair]) -> None:
    """Set splits that are words of folders, such as test in `test_data`.

    Without a train, test is perhaps another thing's name.
    """
    words = []
    for pair in pairs:
        folders = pair.name.split("/")[:-1]
        words.append(next(filter(None, map(split_in, folders)), None))
    if "train" not in words:
        return
    for pair, word in zip(pairs, words, strict=True):
        pair.split = pair.split or word


def _join_classes(sources: Sources) -> tuple[Sequence[Annotation], list[str], str]:
    """Return an annotation with all masks of an image, if each mask is of one class.

    Also a line for each mask that is left out, and why masks whose names have classes are not of
    one class each. Otherwise the annotations stay as they are.
    """
    annotations = sources.annotations
    images = list(sources.images.values())
    if len(annotations) <= len(images):
        return annotations, [], ""
    joined: list[Annotation] = []
    used: set[Path] = set()
    found = match_classes(images, [annotation.key for annotation in annotations])
    for key, numbers_by_class in zip(images, found, strict=bool(found)):
        paths, classes = [], []
        for name, numbers in numbers_by_class.items():
            for number in numbers:
                paths.append(annotations[number].path)
                classes.append(name)
        if paths:
            joined.append(Annotation(key, tuple(paths), classes=tuple(classes)))
            used.update(paths)
    problem = problem_of(joined)
    if problem:
        return annotations, [], f"; or masks of one class each, but {problem}"
    if not joined:
        return annotations, [], ""
    left_out = []
    for annotation in annotations:
        if annotation.path not in used:
            left_out.append(f"{annotation.path}: no image, or no class that recurs")
    return joined, left_out, ""


def _explain_no_pair(
    sources: Sources,
    annotations: Sequence[Annotation],
    reader: Reader,
    repeated: Mapping[str, str],
    problem: str,
) -> str:
    """Return the reason why there is no pair, and the next step."""
    count_images, count = len(sources.images), len(annotations)
    there_are = f"there are {count_images} images and {count} annotations; save each"
    if not count_images:
        reason = f"{there_are} image as {', '.join(IMAGE_SUFFIXES)}"
    elif not count and reader.annotations:
        reason = "names do not tell masks from images; use folders, such as images and masks"
    elif not count:
        reason = f"{there_are} annotation as {', '.join(reader.suffixes)}"
    else:
        (image, key), annotation = next(iter(sources.images.items())), annotations[0]
        reason = f"compare {image} with {annotation.image_name or annotation.path}; rename them"
        reason = repeated.get(key.path.name, reason)
        if found := format_of(annotation.path, reader.flag):
            reason = f"{annotation.path} {found}"
    return (
        f"{sources.folder}: no image fits exactly one annotation; {reason}, or give patterns whose "
        "* are the parts to compare, such as --images 'DIR/*_photo.jpg' --masks 'DIR/*_label.png'"
        + problem
    )
