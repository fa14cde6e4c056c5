"""Find the image of each annotation by the words and numbers in their paths.

Words that most files of one side have, and few of the other, do not count, such as `image` and
`mask`. Folders count if names repeat. Where several masks have the words of one image, `by_class`
finds out whether the other words, such as `_leaf` and `_fruit`, are classes.
"""

import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.images.files import comparable, files_below
from mmseg_ext.images.values import IMAGE_SUFFIXES
from mmseg_ext.own_dataset.annotations.formats import require_no_other

MASK_SUFFIXES = (*IMAGE_SUFFIXES, ".gif")
_TEXT_SUFFIXES = (".json", ".geojson", ".txt")
_MASK = "masks?|labels?|labelids|l|seg(?:mentations?(?:class|object)?)?|gt|groundtruth"
_MASK += "|ann(?:ot(?:ations?)?)?"
_USUAL = f"(?:images?|imgs?|{_MASK})"
_SPLIT = r"(train|val|test)(?:ing|id|idation)?(?:set)?(?:20\d\d)?"
SPLIT_WORD = re.compile(_SPLIT, re.I)  # validation, trainset, val2017
_FOLDER = re.compile(f"(?:{_USUAL}[_-])?(?:{_SPLIT})?[_-]?{_USUAL}?", re.I)  # labels_train2017
_KIND = "(?:_(?:dir|png|prepped))?(?:_(?:train|val|test))?"  # masks_png, labels_train
_MASK_NAME = re.compile(
    f"(?:^|[_-]|train|val|test|default)(?:{_MASK}){_KIND}$", re.I
)  # a_mask, trainannot, labels_png
_MASK_START = re.compile(f"(?!l[_-])(?:{_MASK})[_-]", re.I)  # mask_1
_MASK_WORD = re.compile(rf"(?:{_MASK})|(?!l\d)(?:{_MASK})\d+", re.I)  # labelIds, mask1
_COUNT = re.compile(r"[\W_]*(?<![^\W_])\d+(?![^\W_])")  # _2 in leaf_2, but not 2 in leaf2
_NAME_PART = re.compile(r"[^\W_]+")  # red and leaf2 in red_leaf2
_WORD = re.compile(r"\d+|[^\W\d_]+")  # scene, 4 and left in scene4_left
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")  # the first two digits of 001


class Key(NamedTuple):
    """The parts of a file's path by which it is compared with other files."""

    split: str | None  # that a folder names
    name: str  # folders and name, without suffix and without usual folders

    @property
    def path(self) -> PurePath:
        """The name below a folder for the split, if there is one."""
        return PurePath(self.split or "", self.name)


def key_of(path: Path) -> Key:
    """Return the key of a file, whose path is relative to the folder of all images or masks."""
    split, folders = None, []
    for part in path.parts[:-1]:
        usual = _FOLDER.fullmatch(part)
        if usual is None:
            folders.append(part)
        elif usual[1] and split is None:
            split = usual[1].lower()
    while path.suffix.lower() in (*MASK_SUFFIXES, *_TEXT_SUFFIXES):  # twice in a.jpg.json
        path = path.with_suffix("")
    return Key(split, "/".join([*folders, path.name]))


def keyed_files(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> dict[Path, Key]:
    """Return the files below `folder` with these suffixes, and their keys.

    `folder` may end in a pattern, as in `masks/*_label.png` or `data/*/*_label.png`. Then files in
    deeper folders count, too, and the part that fits the first * of the last name is the name.

    Raises:
        ValueError: if there is no such folder, or it has files of another format instead.
    """
    parts = folder.parts
    fixed = next((i for i, part in enumerate(parts) if "*" in part), len(parts))
    folder, pattern = Path(*parts[:fixed]), "/".join(parts[fixed:]) or "*"
    if folder.is_file():
        raise ValueError(f"{folder}: is a file; give a folder")
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    start, _, end = PurePath(pattern).name.partition("*")
    shared = "(.+?)" if "*" in end else "(.+)"
    name_part = re.compile(re.escape(start) + shared + ".*".join(map(re.escape, end.split("*"))))
    keys = {}
    for path in files_below(folder):
        relative = path.relative_to(folder)
        if path.suffix.lower() in suffixes and relative.match(pattern):
            found = name_part.fullmatch(path.name)
            keys[path] = key_of(relative.with_name(found[1] if found else path.name))
    if not keys and pattern == "*":
        require_no_other(folder, suffixes)
    return keys


def split_in(name: str) -> str | None:
    """Return the split that is a word of a name, or None."""
    for word in _NAME_PART.findall(name):
        if found := SPLIT_WORD.fullmatch(word):
            return found[1].lower()
    return None


def masks_among(paths: Collection[Path], folder: Path) -> set[Path]:
    """Return the masks in a folder that also has the images.

    These are the files with a word for masks at the end of a folder or a name. If there are none,
    it is at the beginning, and if there are none either, they are all files but JPEGs; none, if
    that would be all.
    """

    def ends_as_masks(path: Path) -> bool:
        return any(map(_MASK_NAME.search, path.relative_to(folder).with_suffix("").parts))

    def begins_as_masks(path: Path) -> bool:
        return _MASK_START.match(path.name) is not None

    def is_no_jpeg(path: Path) -> bool:
        return path.suffix.lower() not in (".jpg", ".jpeg")

    for is_mask in (ends_as_masks, begins_as_masks, is_no_jpeg):
        found = set(filter(is_mask, paths))
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
        """Find the image that alone has the text of an annotation, and has no annotation yet."""
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


def by_class(
    images: Sequence[Key], masks: Sequence[tuple[Path, Key]]
) -> tuple[dict[str, str], int, list[Path]]:
    """Return the masks of each class as `--masks` takes them, if several have an image's words.

    Also the index of the first image that has several, and these. There are at least two classes,
    and two images have several. Separate numbers, as in `leaf_2`, count the masks of a class.
    """
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
        parts = _NAME_PART.findall(f"{folder} {before} {after}")
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
        return {}, 0, []
    first = with_several[0]
    return classes, first, [masks_of[kind][first] for kind in classes if first in masks_of[kind]]


def _divide(
    path: Path, key: Key, index: Mapping[str, int | None]
) -> tuple[int, str, str, str] | None:
    """Return the image whose words a mask has, and what else the mask's path has.

    That is a folder or "", and what is before and after the image's words in the name. The image
    with most words counts. The mask's name can begin or end with it, and have none if the image is
    in the mask's folder.
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
