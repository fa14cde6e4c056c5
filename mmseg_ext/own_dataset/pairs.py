"""The pairs of a project: each image with its annotation.

`matching` compares the names, and the readers in `annotations` list the files. Masks of one class
each, several for an image, become one annotation.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmseg_ext.errors import LabelError
from mmseg_ext.images.values import IMAGE_SUFFIXES
from mmseg_ext.own_dataset.annotations.class_masks import ClassMasks
from mmseg_ext.own_dataset.annotations.masks import Annotation, Masks
from mmseg_ext.own_dataset.matching import (
    Key,
    keyed_files,
    masks_among,
    match,
    match_classes,
    split_in,
)
from mmseg_ext.own_dataset.preview import PREVIEW


@dataclass
class Pair:
    image: Path
    annotation: Annotation
    name: str  # of its files in the project
    split: str | None  # None until it is chosen
    labels: set[str] = field(default_factory=set)
    label: Path = Path()  # the label map, until the split is chosen
    counts: Any = None  # pixels of each class
    # Of the image, as `_look_at` finds them.
    size: tuple[int, int] = (0, 0)  # height and width, upright
    orientation: int = 1
    small: Any = None

    def image_file(self, data: Path) -> Path:
        return data / f"images/{self.split}/{self.name}{self.image.suffix}"

    def label_file(self, data: Path, split: str | None) -> Path:
        return data / f"annotations/{split}/{self.name}.png"


def find_pairs(images: Path, reader: Masks, data: Path) -> tuple[list[Pair], list[str], Masks]:
    """Return the pairs, a line for each file that is in none, and the reader of the annotations.

    Raises:
        ValueError: if there is no pair.
    """
    found, annotations = _separate(images, reader, data)
    left_out, problem = [], ""
    if type(reader) is Masks and (joined := _join_classes(list(found.values()), annotations)):
        try:
            reader = ClassMasks([annotation for _, annotation in joined])
            of_class = {path for _, a in joined for path in (a.path, *a.objects)}
            rest = [a.path for _, a in annotations if a.path not in of_class]
            left_out = [f"{path}: no image, or no class that recurs" for path in rest]
            annotations = joined
        except LabelError as error:
            problem = f"; or masks of one class each, but {error}"
    exact = any(annotation.name for _, annotation in annotations)  # COCO has the names
    fits = match(list(found.values()), [key for key, _ in annotations], exact)
    pairs, used = [], set()
    names: dict[Key, Path] = {}
    for (path, (split, name)), fit in zip(found.items(), fits, strict=True):
        used.update(fit)
        if not fit:
            left_out.append(f"{path}: no annotation, or several, or several images have this name")
            continue
        (inner, _), annotation = annotations[fit[0]]
        more = tuple(annotations[i][1].path for i in fit[1:])
        annotation = annotation._replace(objects=annotation.objects + more)
        pair = Pair(path, annotation, name, split or inner)
        if (key := (pair.split or "train", name)) in names:
            left_out.append(f"{path}: {names[key]} has the same name")
            continue
        names[key] = path
        pairs.append(pair)
    # A word such as test in `test_data`; without a train it is perhaps another thing's name.
    words = [next(filter(None, map(split_in, p.name.split("/")[:-1])), None) for p in pairs]
    for pair, word in zip(pairs, words, strict=True) if "train" in words else ():
        pair.split = pair.split or word
    if not pairs:
        first = next((a for _, a in annotations), Annotation(images))
        reason = f"compare {next(iter(found), None)} with {first.name or first.path}; rename them"
        if not found or not annotations:
            kind, endings = ("annotation", reader.suffixes) if found else ("image", IMAGE_SUFFIXES)
            count = f"{len(found)} images and {len(annotations)} annotations"
            reason = f"there are {count}; save each {kind} as {', '.join(endings)}"
        elif type(reader) is Masks and len(annotations) > len(found) and not problem:
            problem = (
                "; if the masks are of one class each, name the class, such as a_leaf.png and "
                "a_stem.png or a_class1.png and a_class2.png, for at least two images"
            )
        raise ValueError(
            f"{images}: no image fits exactly one annotation; {reason}, or give patterns whose * "
            "are the parts to compare, such as --images 'DIR/*_photo.jpg' --masks 'DIR/*_label.png'"
            + problem
        )
    left_out += [
        f"{a.path}: no image {a.name}".rstrip()
        for i, (_, a) in enumerate(annotations)
        if i not in used
    ]
    return pairs, left_out, reader


def _join_classes(
    images: Sequence[Key], annotations: Sequence[tuple[Key, Annotation]]
) -> list[tuple[Key, Annotation]]:
    """Return an annotation with all masks of an image, with its key, if each is of one class."""
    if len(annotations) <= len(images):
        return []
    joined = []
    found = match_classes(images, [key for key, _ in annotations])
    for key, numbers in zip(images, found, strict=bool(found)):
        content = {name: [annotations[i][1].path for i in n] for name, n in numbers.items()}
        if paths := [*itertools.chain(*content.values())]:
            joined.append((key, Annotation(paths[0], objects=(*paths[1:],), content=content)))
    return joined


def _separate(
    images: Path, reader: Masks, data: Path
) -> tuple[dict[Path, Key], list[tuple[Key, Annotation]]]:
    """Return the keys of the images, and the annotations; they may share a folder."""
    project = data.parent.absolute()  # can be in the folder of the images
    own = {project / name for name in ("data", "work_dir", PREVIEW)}

    def is_source(path: Path) -> bool:
        return own.isdisjoint([path.absolute(), *path.absolute().parents])

    found = {path: key for path, key in keyed_files(images).items() if is_source(path)}
    annotations = [(key, a) for key, a in reader.files if is_source(a.path)]
    masks = {annotation.path for _, annotation in annotations}
    if masks > found.keys():  # the folder of the masks has the images, too
        masks -= found.keys()
    elif masks == found.keys() or (reader.is_pattern and masks < found.keys() and images.is_dir()):
        relative = {path.relative_to(images): path for path in found}
        among = {relative[path] for path in masks_among(list(relative))}
        # The pattern of some masks leaves out the others, if all of them differ from the images.
        masks = among if masks == found.keys() or masks <= among else masks
    found = {path: key for path, key in found.items() if path not in masks}
    return found, [(key, a) for key, a in annotations if a.path not in found]
