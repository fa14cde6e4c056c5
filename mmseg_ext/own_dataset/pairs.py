"""Photos and annotations: which files are photos, and the annotation of each.

The files of both can share a folder. An annotation fits the image whose words and numbers it has in
its path. Words that most files of one side have, and few of the other, do not count, such as
`image` and `mask`. Folders count if names repeat.
"""

import os
import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePath

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.errors import join_names
from mmseg_ext.images.files import comparable
from mmseg_ext.images.values import IMAGE_SUFFIXES
from mmseg_ext.own_dataset.annotations.formats import format_of, require_no_other
from mmseg_ext.own_dataset.annotations.reader import Annotation, Reader
from mmseg_ext.own_dataset.classes import read_classes
from mmseg_ext.own_dataset.item import (
    MASK_WORDS,
    NAME_PART,
    Item,
    Key,
    keyed_files,
    split_in,
    usable,
)
from mmseg_ext.own_dataset.preview import PREVIEW

_KIND = "(?:_(?:dir|png|prepped))?(?:_(?:train|val|test))?"  # masks_png, labels_train
_MASK_NAME = re.compile(
    f"(?:^|[_-]|train|val|test|default)(?:{MASK_WORDS}){_KIND}$", re.I
)  # a_mask, trainannot, labels_png
_MASK_START = re.compile(f"(?!l[_-])(?:{MASK_WORDS})[_-]", re.I)  # mask_1
_MASK_WORD = re.compile(rf"(?:{MASK_WORDS})|(?!l\d)(?:{MASK_WORDS})\d+", re.I)  # labelIds, mask1
_COUNT = re.compile(r"[\W_]*(?<![^\W_])\d+(?![^\W_])")  # _2 in leaf_2, but not 2 in leaf2
_WORD = re.compile(r"\d+|[^\W\d_]+")  # scene, 4 and left in scene4_left
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")  # the first two digits of 001
_UNCLEAR = "no annotation fits its name, or several do"
_MISSING = "no annotation; if it shows only background, use --background-without-annotation"


def list_items(folder: Path, reader: Reader, data: Path) -> list[Item]:
    """Return the photos in a folder, or of a pattern; `data` is the project's.

    Photos, files that an earlier run wrote, and masks of the kind that VOC's other folder has are
    dropped from the annotations of the reader.

    Raises:
        ValueError: if there are no photos or no annotations.
    """
    project = data.parent.absolute()  # can be in the folder of the images
    results = {project / "data", project / "work_dir", project / PREVIEW}
    other_folder = "SegmentationClass" if reader.objects else "SegmentationObject"

    def is_source(path: Path) -> bool:
        return results.isdisjoint([path.absolute(), *path.absolute().parents])

    def is_of_kind(path: Path) -> bool:
        return other_folder not in path.parts

    keys = keyed_files(folder)
    annotations = [annotation for annotation in reader.annotations if is_source(annotation.path)]
    every = [*keys, *(annotation.path for annotation in reader.annotations)]
    written = [path for path in every if not is_source(path)]
    has_sources = annotations and any(map(is_source, keys))
    if written and not (has_sources and read_classes(data)):  # no earlier run can have written them
        raise ValueError(
            f"{written[0]}: is where new_project writes files of the project {data.parent}; give "
            "another project, or move your files"
        )
    of_kind = [annotation for annotation in annotations if is_of_kind(annotation.path)]
    annotations = of_kind or annotations
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
            annotation without an image perhaps belongs to an item that would become background.
    """
    annotations = reader.annotations
    if reader.can_have_classes and not reader.objects and len(annotations) > len(items):
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
    # Objects without an image perhaps belong to a photo that would become background.
    without_image = [annotations[number] for number in unused]
    missing = [item for item in usable(items) if item.annotation and item.annotation.is_missing]
    for annotation in without_image if missing else ():
        if reader.has_objects(annotation):
            name = annotation.image_name or annotation.path
            raise ValueError(
                f"{missing[0].image}: would become background, but the objects of {name} have no "
                "image; rename one of the two, or leave out --background-without-annotation"
            )
    # Splits can be words of folders, as in test_data; without a train, test is perhaps a name.
    words = {}
    for item in usable(items):
        folders = item.key.name.split("/")[:-1]
        words[item.image] = next(filter(None, map(split_in, folders)), None)
    for item in usable(items) if "train" in words.values() else ():
        item.split = item.split or words[item.image]
    return [f"{each.path}: no image {each.image_name}".rstrip() for each in without_image]


def _find_annotations(
    items: Sequence[Item], annotations: Sequence[Annotation], exact: bool
) -> tuple[list[list[Annotation]], list[int]]:
    """Return the annotations of each item, and the indices of those that fit none for certain.

    Several are certain if they show its objects, because only they are with it in a folder, or
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


def _repeated_names(items: Sequence[Item], annotations: Sequence[Annotation]) -> dict[str, str]:
    """Return a line on each name, without folders, that several images or annotations have."""
    lines = {}
    images = [(item.key, item.image) for item in items]
    others = [(annotation.key, annotation.path) for annotation in annotations]
    for kind, files in (("images", images), ("annotations", others)):
        paths: dict[str, list[str]] = defaultdict(list)
        for key, path in files:
            paths[key.path.name].append(str(path))
        for name, same in paths.items():
            if len(same) > 1:
                found = f"{len(same)} {kind} are called {name} ({join_names(same)})"
                todo = "give one folder" if len(set(map(os.path.dirname, same))) > 1 else "keep one"
                lines[name] = f"{found}; {todo}"
                if len(set(same)) == 1:  # of a file that lists images
                    lines[name] = f"{same[0]} lists {len(same)} images called {name}; keep one"
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
    texts = [f"{where}: no image fits exactly one annotation", reason, todo]
    return "; ".join(filter(None, texts))


def masks_among(paths: Collection[Path], folder: Path) -> set[Path]:
    """Return the masks in a folder, or of a pattern, that also has the images.

    These are the files with a word for masks at the end of a folder or a name. If there are none,
    it is at the beginning, and if there are none either, they are all files but JPEGs; none, if
    that would be all.
    """
    root = folder if folder.is_dir() else Path(os.path.commonpath([path.parent for path in paths]))
    parts = {path: path.relative_to(root).with_suffix("").parts for path in paths}
    for found in (
        {path for path in paths if any(map(_MASK_NAME.search, parts[path]))},
        {path for path in paths if _MASK_START.match(path.name)},
        {path for path in paths if path.suffix.lower() not in (".jpg", ".jpeg")},
    ):
        if found and len(found) < len(paths):
            return found
    return set()


def fit(images: Sequence[Key], annotations: Sequence[Key], exact: bool = False) -> list[int | None]:
    """Return the index of the image of each annotation; None if not certain.

    Several annotations can have one image. An image that has one gets no other by a weaker way:

    1. The paths are equal, or, for an image whose folder has no annotations, the names.
    2. As 1, with upper and lower case alike.
    3. Without such names, the annotation is in the folder of the image, and no other image is.
    4. As 1 and 2, without usual words. With `exact` all words count, so this is not tried.
    5. As 4, without zeros before numbers: 001 fits 1 if no other image has this number.
    """
    found: list[int | None] = [None] * len(annotations)

    def add(own: Sequence[str], others: Sequence[str]) -> None:
        """Find the only image that has the text of an annotation, and has no annotation yet."""
        count, taken = Counter(own), set(found)
        index = {text: i for i, text in enumerate(own) if count[text] == 1 and i not in taken}
        for number, text in enumerate(others):
            if found[number] is None and text not in ("", "."):
                found[number] = index.get(text)

    def add_paths_and_names(own: Sequence[PurePath], others: Sequence[PurePath], change) -> None:
        own, others = ([PurePath(change(str(path))) for path in paths] for paths in (own, others))
        add(list(map(str, own)), list(map(str, others)))
        annotated = {path.parent for path in others}
        names = ["" if path.parent in annotated else path.name for path in own]
        add(names, [path.name for path in others])

    own, others = _paths(images), _paths(annotations)
    add_paths_and_names(own, others, str)
    add_paths_and_names(own, others, comparable)
    if exact:
        return found
    folders = [comparable(str(path.parent)) for path in own]
    if set(found) == {None} and len({*folders} - {*SPLITS}) == len(own):
        add(folders, [comparable(str(path.parent)) for path in others])
    own, others = _without_usual_words(own, others), _without_usual_words(others, own)
    add_paths_and_names(own, others, str)
    add_paths_and_names(own, others, comparable)
    add_paths_and_names(own, others, lambda text: _ZEROS.sub("", comparable(text)))
    return found


def _require_one_mask_each(items: Sequence[Item], annotations: Sequence[Annotation]) -> None:
    """Raise ValueError if the words of masks tell several classes for images, with the flag.

    There are at least two classes, and two images have several. Separate numbers, as in `leaf_2`,
    count the masks of a class.
    """
    images = [item.key for item in items]
    masks = [(annotation.path, annotation.key) for annotation in annotations]
    own = _paths(images)
    ways = [_without_usual_words(own, _paths([key for _, key in masks]))]
    if len({path.parent for path in own}) == len(own):  # each in a folder of its own
        ways.append([path.parent for path in own])
    index: dict[str, int | None] = {}
    for paths in ways:
        for i, path in enumerate(paths):
            text = _join_words(path.parts)
            index[text] = i if index.get(text, i) == i else None  # None: several have these words
    root = Path(os.path.commonpath([path.parent for path, _ in masks]))
    masks_of: dict[str, dict[int, Path]] = defaultdict(dict)  # of each class, by image
    patterns: dict[str, str] = {}
    for path, key in masks:
        found = _divide(path, key, index)
        if found is None:
            continue
        image, folder, before, after = found
        parts = NAME_PART.findall(f"{folder} {before} {after}")
        of_class = [part for part in parts if not part.isdigit() and not _MASK_WORD.fullmatch(part)]
        kind = "_".join(of_class)
        masks_of[kind][image] = path
        is_own_name = before + after == path.stem
        pattern = _COUNT.sub("*", before if is_own_name else f"{before}*{after}") + path.suffix
        where = root / folder
        if where not in path.parents:  # the class's folder is in another one
            where = root / "*" / folder
        elif is_own_name:
            where = root / "*"
        if folder and where in path.parents and pattern == f"*{path.suffix}":
            patterns[kind] = str(where)
        elif pattern.count("*") >= patterns.get(kind, "").count("*"):
            patterns[kind] = str(where / pattern)
    classes = {kind: patterns[kind] for kind in sorted(patterns) if len(masks_of[kind]) > 1}
    count = Counter(image for kind in classes for image in masks_of[kind])
    with_several = sorted(image for image, n in count.items() if n > 1)
    if len(with_several) < 2 or "" in classes:  # masks without words of a class have all classes
        return
    first = with_several[0]
    several = [str(masks_of[kind][first]) for kind in classes if first in masks_of[kind]]
    flags = [f"{name}={shlex.quote(source)}" for name, source in classes.items()]
    raise ValueError(
        f"{items[first].image}: {len(several)} masks fit it, {join_names(several)}; "
        f"if each is of one class, use --masks {' '.join(flags)}; if one has all classes, give its "
        f"folder or pattern, such as --masks {shlex.quote(next(iter(classes.values())))}"
    )


def _divide(
    path: Path, key: Key, index: Mapping[str, int | None]
) -> tuple[int, str, str, str] | None:
    """Return the image whose words a mask has, and the rest of the mask's path.

    The rest is a folder or "", and the text before and after the image's words in the name. The
    image with most words counts. The mask's name can begin or end with it, and have none if the
    image is in the mask's folder.
    """
    name, folders = path.stem, PurePath(key.name).parts[:-1]
    words = list(_WORD.finditer(name))
    spans = [(0, 0), *((0, word.end()) for word in words)]
    spans += [(word.start(), len(name)) for word in words[1:]]
    if words and _MASK_WORD.fullmatch(words[-1][0]):  # leaf_1_mask
        spans += [(word.start(), words[-2].end()) for word in words[1:-1]]
    fits = []
    for folder in ("", *folders):
        kept = [key.split or "", *(other for other in folders if other != folder)]
        for start, end in spans:
            image = index.get(_join_words([*kept, name[start:end]]))
            if image is not None:
                fits.append((start - end, folder, start, end, image))
    if not fits:
        return None
    _, folder, start, end, image = min(fits)  # with most words; if it can be, without a folder
    return image, folder, name[:start] if end else name, name[end:] if end else ""


def _paths(keys: Sequence[Key]) -> list[PurePath]:
    return [PurePath(unicodedata.normalize("NFC", str(key.path))) for key in keys]


def _join_words(parts: Sequence[str]) -> str:
    """Return the words of folders and a name, with numbers without zeros: scene 4/left 1."""
    found = [" ".join(_WORD.findall(_ZEROS.sub("", part))) for part in parts]
    return "/".join(filter(None, found))


def _without_usual_words(paths: Sequence[PurePath], others: Sequence[PurePath]) -> list[PurePath]:
    """Return the paths without the words that most of them have, and few of the others.

    A word that is in a name twice, as in `scene1_1`, goes only where nine of ten paths have it.
    """
    count, count_of_others = Counter(), Counter()  # paths with each word
    for counter, some in ((count, paths), (count_of_others, others)):
        for path in some:
            counter.update({*_WORD.findall(str(path))})
    few = min(1, len(others) / max(1, len(paths))) / 2
    usual = set()
    for word, n in count.items():
        if n > max(1, len(paths) / 2) and count_of_others[word] < few * n:
            usual.add(word)

    def places(words: Sequence[str], i: int) -> set[tuple[str, int]]:
        """Return a word with its places from the start and from the end, as ("a", 0), ("a", -2)."""
        return {(words[i], i), (words[i], i - len(words))}

    paths_with: Counter[tuple[str, int]] = Counter()  # a word in a place of a folder or of the name
    for path in paths:
        of_path = set()
        for words in map(_WORD.findall, path.parts):
            of_path.update(*(places(words, i) for i in range(len(words))))
        paths_with.update(of_path)
    shortened = []
    for path in paths:
        parts = []
        for words in map(_WORD.findall, path.parts):
            kept = []
            for i, word in enumerate(words):
                is_here = max(paths_with[place] for place in places(words, i)) > 0.9 * len(paths)
                if word not in usual or (words.count(word) > 1 and not is_here):
                    kept.append(word)
            parts.append(" ".join(kept))
        shortened.append(PurePath(*parts))
    return shortened
