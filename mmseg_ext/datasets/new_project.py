"""The data of a project for your own images: pairs of images and label maps in `data/`.

Sources never change. A second run writes all pairs again and keeps their splits.
"""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.datasets.annotation_readers import BACKGROUND, Annotation, Masks, keyed_files
from mmseg_ext.datasets.dataset_report import Summary
from mmseg_ext.datasets.image_values import declared
from mmseg_ext.datasets.images import (
    IMAGE_SUFFIXES,
    progress,
    read,
    read_bytes,
)
from mmseg_ext.datasets.labels import join_names
from mmseg_ext.datasets.pairing import SPLITS, Key, masks_among, match
from mmseg_ext.errors import LabelError, UnreadableFileError

IGNORED = 255


class Project(NamedTuple):
    """The data of a project.

    `labels` maps the text of each annotated value to its class, or to 255. `colors` are the RGB
    colors of classes that have one. `summaries` begin with the training set. `left_out` has a line
    for each file that is not in a pair. `example` is a pair of sources. `earlier` are label maps of
    earlier runs that this run did not write again, but that are still in the dataset.
    """

    labels: dict[str, int]
    colors: dict[int, list[int]]
    summaries: list[Summary]
    left_out: list[str]
    example: tuple[Path, Path]
    earlier: Sequence[Path] = ()


@dataclass
class _Pair:
    image: Path
    annotation: Annotation
    name: str  # of its files in the project
    split: str | None  # None until it is chosen
    labels: set[str] = field(default_factory=set)

    def label_file(self, data: Path, split: str | None) -> Path:
        return data / f"annotations/{split}/{self.name}.png"


def make_project(
    folder: Path,
    images: Path,
    reader: Masks,
    classes: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    val_share: float = 0.2,
    test_share: float = 0,
) -> Project:
    """Write the images and the label maps of a project to `folder`/data.

    `images` is searched with its subfolders; if these are `train`, `val` and `test`, they are the
    splits. `ignored` has values, colors (#rrggbb) or names.

    Raises:
        ValueError: if no pair is found, or the values do not fit the classes.
    """
    data, state_file = folder / "data", folder / "data/classes.json"
    pairs, left_out = find_pairs(images, reader, data)
    sources = progress([pair.annotation for pair in pairs], "reading", len(pairs))
    for pair, found in zip(pairs, reader.prepare(sources), strict=True):
        pair.labels = found
    _choose_splits(pairs, {"test": test_share, "val": val_share}, data)
    names, labels = assign_classes(reader.labels, classes, ignored)
    state = dict(classes=names, labels=labels)
    if state_file.is_file():
        before = json.loads(state_file.read_text())
        if before["classes"] != names or before["labels"] | labels != labels | before["labels"]:
            raise ValueError(
                f"{state_file}: has {before}, not {state}; run the same command as before, or "
                "start a new project"
            )
        state["labels"] = before["labels"] | labels
    splits = ["train", "val", *(["test"] if any(pair.split == "test" for pair in pairs) else [])]
    summaries = {split: Summary(split, tuple(names)) for split in splits}
    earlier = {*data.glob("annotations/**/*.png")}
    for pair in progress(pairs, "writing", len(pairs)):
        try:
            label = _write_pair(pair, reader, labels, data)
        except (LabelError, UnreadableFileError) as error:
            left_out.append(str(error))
            continue
        earlier.discard(pair.label_file(data, pair.split))
        counts = np.bincount(label.ravel(), minlength=len(names))
        summaries[pair.split].add(str(pair.image), label.shape[::-1], counts)
    if empty := [split for split in splits if not summaries[split].pairs]:
        reason = (left_out or ["a project needs at least two pairs"])[-1]
        raise ValueError(f"{empty[0]}: no pair is usable; {reason}")
    write_text(json.dumps(state, indent=1), state_file)
    write_text("".join(f"{line}\n" for line in left_out), folder / "left_out.txt")
    colors = {labels[text]: rgb for text, rgb in reader.colors.items()}
    example = pairs[0].image, pairs[0].annotation.path
    return Project(labels, colors, list(summaries.values()), left_out, example, sorted(earlier))


def assign_classes(
    labels: Mapping[int, str], names: Sequence[str] | None = None, ignored: Sequence[str] = ()
) -> tuple[list[str], dict[str, int]]:
    """Return the classes, and the class of each label; 255 for ignored labels.

    The value 255 of masks is ignored if the other values are 0, 1, 2, ..., of which one can be
    missing, or numbers of named classes. If all values can have a name each, it is a class, and in
    masks with two values.

    Raises:
        ValueError: if the labels do not fit the names, or there are not 2 to 255 classes.
    """
    texts = join_names([*labels.values()])
    if len(labels) == 1:
        raise ValueError(f"all masks have the value {texts}; at least two values are needed")
    there_are = f"there are {len(labels)} values: {texts}"
    if unknown := set(ignored) - set(labels.values()):
        raise ValueError(f"--ignore {min(unknown)}: no annotation has this value; {there_are}")
    left = {value: label for value, label in labels.items() if label not in ignored}
    if BACKGROUND in labels.values():  # COCO and labelme
        names = list(names or left.values())
        names = names if BACKGROUND in {*names, *ignored} else [BACKGROUND, *names]
        if missing := set(left.values()) - set(names):
            raise ValueError(f"--classes lacks {min(missing)!r}; name it, or add it to --ignore")
        order = {label: names.index(label) for label in left.values()}
    else:
        if IGNORED in left and len(left) > 2:
            others = left.keys() - {IGNORED}
            if not names:
                is_ignored = max(others) <= len(others)
            elif len(names) == len(left):  # they can be the names of all values
                is_ignored = 0 in others and len(others) <= max(others) < len(names)
            else:
                is_ignored = max(others) < len(names)
            if is_ignored:
                del left[IGNORED]
        order = {label: i for i, label in enumerate(left.values())}
        if names and max(left, default=0) < len(names):
            order = {label: value for value, label in left.items()}
        elif names and len(names) != len(left):
            raise ValueError(
                f"--classes names {len(names)} classes, but {there_are}; give one name per value, "
                "or --ignore values"
            )
        names = list(names or (f"class_{i}" for i in range(len(left))))
    if not 2 <= len(names) <= IGNORED:
        raise ValueError(
            f"{len(names)} classes, but a project has 2 to {IGNORED}; {there_are}; masks with "
            "smooth edges have too many"
        )
    if wrong := [n for n in names if names.count(n) > 1 or not n.strip()]:
        raise ValueError(f"class {wrong[0]!r}: every class needs a name of its own")
    if wrong := [n for n in names if "{{" in n or re.search("[\ud800-\udfff]", n)]:
        raise ValueError(
            f"class {wrong[0]!r}: a config cannot have '{{{{' or surrogates; rename it"
        )
    return names, {label: order.get(label, IGNORED) for label in labels.values()}


def find_pairs(images: Path, reader: Masks, data: Path) -> tuple[list[_Pair], list[str]]:
    """Return the pairs, and a line for each file that is in none.

    Raises:
        ValueError: if there is no pair.
    """
    found, annotations = _separate(images, reader, data)
    exact = any(annotation.name for _, annotation in annotations)  # COCO has the names
    fits = match(list(found.values()), [key for key, _ in annotations], exact)
    pairs, left_out, used = [], [], set()
    names: dict[Key, Path] = {}
    for (path, (split, name)), fit in zip(found.items(), fits, strict=True):
        used.update(fit)
        if not fit:
            left_out.append(f"{path}: no annotation, or several, or several images have this name")
            continue
        (inner, _), annotation = annotations[fit[0]]
        more = tuple(annotations[i][1].path for i in fit[1:])
        pair = _Pair(path, annotation._replace(objects=more), name, split or inner)
        if (key := (pair.split or "train", name)) in names:
            left_out.append(f"{path}: {names[key]} has the same name")
            continue
        names[key] = path
        pairs.append(pair)
    if not pairs:
        first = next((a for _, a in annotations), Annotation(Path("none")))
        raise ValueError(
            f"{images}: no image fits an annotation; compare {next(iter(found), 'none')} with "
            f"{first.name or first.path}; rename the files, or give patterns whose * are the parts "
            "to compare, such as --images 'DIR/*_photo.jpg' --masks 'DIR/*_label.png'"
        )
    left_out += [
        f"{a.path}: no image {a.name}" for i, (_, a) in enumerate(annotations) if i not in used
    ]
    return pairs, left_out


def _separate(
    images: Path, reader: Masks, data: Path
) -> tuple[dict[Path, Key], list[tuple[Key, Annotation]]]:
    """Return the keys of the images, and the annotations; they may share a folder."""

    def is_source(path: Path) -> bool:  # the project can be in the folder of the images
        return data.absolute() not in path.absolute().parents

    found = {path: key for path, key in keyed_files(images).items() if is_source(path)}
    annotations = [(key, a) for key, a in reader.files if is_source(a.path)]
    masks = {annotation.path for _, annotation in annotations}
    if masks == found.keys():
        relative = {path.relative_to(images): path for path in found}
        masks = {relative[path] for path in masks_among(list(relative))}
    elif masks > found.keys():  # the folder of the masks has the images, too
        masks -= found.keys()
    found = {path: key for path, key in found.items() if path not in masks}
    return found, [(key, a) for key, a in annotations if a.path not in found]


def _choose_splits(pairs: Sequence[_Pair], shares: Mapping[str, float], data: Path) -> None:
    """Assign the pairs without a split; each split without a folder gets its share of them.

    Pairs of an earlier run keep their split. The order is the hash of the names. Each class gets
    into all splits if enough images have it.
    """
    given = {pair.split for pair in pairs}
    shares = {s: share for s, share in shares.items() if share and s not in given}
    pool = [pair for pair in pairs if not pair.split or (shares and pair.split == "train")]
    for pair in pool:
        splits = (split for split in SPLITS if pair.label_file(data, split).is_file())
        pair.split = next(splits, None)
    for split, share in shares.items():
        free = [pair for pair in pool if pair.split is None]
        have = sum(pair.split == split for pair in pool)
        most = len(free) - all(pair.split != "train" for pair in pool)
        count = max(0, min(max(round(share * len(pool)) - have, not have), most))
        free.sort(key=lambda pair: hashlib.sha256(pair.name.encode()).digest())
        left = Counter(label for pair in free for label in pair.labels)
        rare_first = sorted(left, key=lambda label: left[label])
        wanted = [(label, pair) for label in rare_first for pair in free if label in pair.labels]
        reached: set[str] = set()
        for label, pair in wanted + [("", pair) for pair in free]:
            is_last = any(left[label] == 1 for label in pair.labels)
            if count and pair.split is None and label not in reached and not is_last:
                pair.split, count = split, count - 1
                reached |= pair.labels
                left.subtract(pair.labels)
        for pair in [pair for pair in free if pair.split is None][:count]:
            pair.split = split
    for pair in pool:
        pair.split = pair.split or "train"


def _write_pair(pair: _Pair, reader: Masks, labels: Mapping[str, int], data: Path) -> np.ndarray:
    """Write the image and the label map of a pair; return the label map (H, W).

    Raises LabelError or UnreadableFileError if a file cannot be read or the sizes differ.
    """
    path, target = str(pair.image), data / f"images/{pair.split}/{pair.name}{pair.image.suffix}"
    content = read_bytes(path)
    pixels = read(content, path)
    tag, upright = pixels.orientation, pixels.upright().values.shape[:2]
    sizes = [upright, upright[::-1]] if tag >= 5 else [upright]
    values = reader.read(pair.annotation, sizes)
    table = np.zeros(max(reader.labels) + 1, np.uint8)
    table[list(reader.labels)] = [labels[label] for label in reader.labels.values()]
    label = table[values]  # (H, W)
    if (label == IGNORED).all():
        raise LabelError(f"{pair.annotation.path}: all its pixels are ignored")
    if pair.label_file(data, pair.split).is_file():  # of an earlier run, maybe with another photo
        for suffix in (*IMAGE_SUFFIXES, *map(str.upper, IMAGE_SUFFIXES)):
            (data / f"images/{pair.split}/{pair.name}{suffix}").unlink(missing_ok=True)
    if tag == 1:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            target.symlink_to(pair.image.resolve())
        except OSError:  # a file system without links
            shutil.copyfile(pair.image, target)
    else:  # written upright, because `image_demo` shows photos to the trained model upright
        if (pixels.white or 256) > 255 or pixels.values.shape[2] > 4:
            raise UnreadableFileError(f"{path}: has an orientation tag ({tag}); save it upright")
        with Image.open(pair.image) as image, atomic_write(target) as part:
            ImageOps.exif_transpose(image).save(part, image.format, quality=95)
        if label.shape != upright:
            label = declared(label, orientation=tag).upright().values[..., 0]
    with atomic_write(pair.label_file(data, pair.split)) as part:
        Image.fromarray(label).save(part, "PNG")
    return label
