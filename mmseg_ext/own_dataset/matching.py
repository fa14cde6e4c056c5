"""Find the annotation of each image by the words and numbers in their names.

Words that most files of one side have, and few of the other, do not count, such as `image` and
`mask`. Folders count if names repeat. Words such as `_leaf` and `_fruit`, which the names of masks
have besides the name of the image, are their classes if they recur.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import NamedTuple

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.images.files import files_below
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
_MASK_WORD = re.compile(_MASK, re.I)  # labelIds
_NUMBERED_MASK = re.compile(rf"(?!l\d)(?:{_MASK})\d+", re.I)  # mask1, which numbers objects
_CLASS_WORD = re.compile("class|cls|category", re.I)  # Class, in a_Class_1
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
    deeper folders count, too, and the part that fits the last * is the name.

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
    keys = {}
    for path in files_below(folder):
        relative = path.relative_to(folder)
        if path.suffix.lower() in suffixes and relative.match(pattern):
            name = path.name.removeprefix(start).removesuffix(end) or path.name
            keys[path] = key_of(relative.with_name(name))
    if not keys and pattern == "*":
        require_no_other(folder)
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


def match(
    images: Sequence[Key], annotations: Sequence[Key], exact: bool = False
) -> list[list[int]]:
    """Return the indices of the annotations that fit each image.

    An image gets the only annotation with its path or, if its folder has no annotations, with its
    name. With `exact` all words count. Otherwise, if no complete name fits and every image has a
    separate folder, it gets all annotations there; and 001 fits 1 if no other name has this number.
    """
    own, other = _paths(images), _paths(annotations)
    found: list[list[int]] = [[] for _ in images]
    _add_names(found, own, other)
    if exact:
        return found
    different = set(_folders(own)) - set(map(PurePath, SPLITS))
    if not any(found) and len(different) == len(own):
        _add_fitting(found, _folders(own), _folders(other), several=True)
    own, other = _without_usual_words(own, other), _without_usual_words(other, own)
    _add_names(found, own, other)
    own, other = _without_zeros(own), _without_zeros(other)
    _add_names(found, own, other)
    return found


def _paths(keys: Sequence[Key]) -> list[PurePath]:
    return [key.path for key in keys]


def _folders(paths: Sequence[PurePath]) -> list[PurePath]:
    return [path.parent for path in paths]


def _add_names(
    found: list[list[int]], images: Sequence[PurePath], annotations: Sequence[PurePath]
) -> None:
    """Add annotations with the path of an image, then those of other folders with its name."""
    _add_fitting(found, images, annotations)
    annotated = set(_folders(annotations))
    names = []
    for path in images:
        names.append(PurePath() if path.parent in annotated else PurePath(path.name))
    _add_fitting(found, names, [PurePath(path.name) for path in annotations])


def _add_fitting(
    found: list[list[int]],
    images: Sequence[PurePath],
    annotations: Sequence[PurePath],
    several: bool = False,
) -> None:
    """Add unused annotations to images without one, if their paths are equal and not repeated."""
    used = set().union(*found)
    index: dict[PurePath, list[int]] = defaultdict(list)
    for number, path in enumerate(annotations):
        if number not in used:
            index[path].append(number)
    count = Counter(images)
    for number, path in enumerate(images):
        is_name_of_one = path.name and count[path] == 1
        fits = index[path] if is_name_of_one else []
        if not found[number] and (several or len(fits) == 1):
            found[number] = fits


class _Division(NamedTuple):
    """A mask's path, divided into the image's and the parts of a class."""

    image: str  # such as "scene/plant 1"
    folder: list[str]  # parts of a folder that is not the image's
    rest: list[str]  # other parts of the name


def match_classes(images: Sequence[Key], masks: Sequence[Key]) -> list[dict[str, list[int]]]:
    """Return the indices of each image's masks by class; an empty list if masks have no classes.

    The class of a mask is in its path, but not in its image's: words at the end or beginning of
    the name, or a folder. Separate numbers can count masks of a class, as in `leaf_2`; digits of a
    word cannot, as in `grade3`. Masks have classes if one recurs for most images and another for a
    tenth; then each that a hundredth has is a class.
    """
    index = _index_of_words(images, masks)
    found: list[dict[tuple[str, str], list[int]]] = [defaultdict(list) for _ in images]
    for number, key in enumerate(masks):
        divided = [part for part in _divide(key) if part.image in index]
        if divided:
            shortest = min(divided, key=lambda part: len(part.folder) + len(part.rest))
            found[index[shortest.image]][_class_of(shortest)].append(number)
    joined = _join_counted(found)
    names = _recurring_classes(joined)
    classes = []
    for masks_of in joined if names else ():
        classes.append({name: masks_of[name] for name in names if name in masks_of})
    return classes


def _join_counted(
    found: Sequence[Mapping[tuple[str, str], list[int]]],
) -> list[dict[str, list[int]]]:
    """Return the masks of each image by class, from its masks by words and separate numbers.

    Numbers count masks if images have different ones after the same words.
    """
    numbers: dict[str, set[frozenset[str]]] = defaultdict(set)  # of the images, after the words
    for masks_of in found:
        for words in {words for words, _ in masks_of}:
            numbers[words].add(frozenset(number for own, number in masks_of if own == words))
    joined: list[dict[str, list[int]]] = [defaultdict(list) for _ in found]
    for by_class, masks_of in zip(joined, found, strict=True):
        for (words, number), masks in masks_of.items():
            (of_image, *others) = numbers[words]
            is_counted = others or len(of_image) == 1 or not words
            by_class[words if is_counted or not number else f"{words}_{number}"] += masks
    return joined


def _recurring_classes(found: Sequence[Mapping[str, list[int]]]) -> list[str]:
    """Return the classes of masks in order; an empty list if no classes recur."""
    count: Counter[str] = Counter()  # images with each class
    for masks_of in found:
        count.update(masks_of.keys())
    annotated = sum(map(bool, found))

    def had_by_one_in(part: int) -> list[str]:
        least = max(2, annotated / part)
        return sorted(name for name in count if count[name] >= least)

    usual = had_by_one_in(10)
    most = max(count.values(), default=0)
    if len(usual) < 2 or "" in usual or most <= annotated / 2:
        return []
    return [name for name in had_by_one_in(100) if name]


def _index_of_words(images: Sequence[Key], masks: Sequence[Key]) -> dict[str, int]:
    """Return the index of each image by the words of its name, and by its folder if it has one."""
    own = _paths(images)
    names = list(map(_join_words, _without_usual_words(own, _paths(masks))))
    folders = list(map(_join_words, _folders(own)))
    index = {}
    if len(set(folders)) == len(own):
        index.update(zip(folders, range(len(own)), strict=True))
    repeats = Counter(names)
    for i, name in enumerate(names):
        if repeats[name] == 1:
            index[name] = i
    return index


def _divide(key: Key) -> Iterator[_Division]:
    """Yield how to divide a mask's path: any folder, or none, and the name at any place."""
    *folders, name = key.path.parts
    first = 0 if key.split is None else 1  # the folder of a split is no class
    for place in (None, *range(first, len(folders))):
        folder = [] if place is None else _NAME_PART.findall(_without_mask(folders[place]))
        kept = ""
        for i, other in enumerate(folders):
            if i != place:
                kept += " ".join(_WORD.findall(other)) + "/"
        for text in dict.fromkeys([name, _without_mask(name)]):
            for n in (*(word.start() for word in _WORD.finditer(text)), len(text)):
                for own, rest in ((text[:n], text[n:]), (text[n:], text[:n])):
                    image = kept + " ".join(_WORD.findall(own))
                    yield _Division(image.strip("/"), folder, _NAME_PART.findall(rest))


def _class_of(division: _Division) -> tuple[str, str]:
    """Return the words of a mask's class, and separate numbers after them.

    There are no words if only those for masks are left.
    """
    words, numbers = list(division.folder), []
    for before, part in pairwise(["", *division.rest]):
        if part.isdigit() and not _CLASS_WORD.fullmatch(before):
            numbers.append(part)
        else:
            words.append(part)
    if all(_MASK_WORD.fullmatch(word) or _NUMBERED_MASK.fullmatch(word) for word in words):
        words = []
    return "_".join(words), "_".join(numbers)


def _without_mask(name: str) -> str:
    """Return a name without a word for masks at its end, if it has other words."""
    parts = list(_NAME_PART.finditer(name))
    if len(parts) > 1 and _MASK_WORD.fullmatch(parts[-1][0]):
        return name[: parts[-1].start()]
    return name


def _join_words(path: PurePath) -> str:
    return "/".join(map(" ".join, map(_WORD.findall, path.parts)))


def _without_usual_words(paths: Sequence[PurePath], others: Sequence[PurePath]) -> list[PurePath]:
    """Return the paths without the words that most of them have, and few of the others.

    A word that is in a name twice, as in `scene1_1`, goes only where nine of ten paths have it.
    """
    usual, places = _usual_words(paths, others), _count_places(paths)
    most = 0.9 * len(paths)

    def shorten(part: str) -> str:
        words, kept = _WORD.findall(part), []
        for i, word in enumerate(words):
            is_repeated = words.count(word) > 1
            is_elsewhere = max(places[place] for place in _places(words, i)) <= most
            if word not in usual or (is_repeated and is_elsewhere):
                kept.append(word)
        return " ".join(kept)

    return [PurePath(*map(shorten, path.parts)) for path in paths]


def _usual_words(paths: Sequence[PurePath], others: Sequence[PurePath]) -> set[str]:
    count, count_of_others = _count_words(paths), _count_words(others)
    few = min(1, len(others) / max(1, len(paths))) / 2
    usual = set()
    for word, n in count.items():
        if n > max(1, len(paths) / 2) and count_of_others[word] < few * n:
            usual.add(word)
    return usual


def _count_words(paths: Sequence[PurePath]) -> Counter[str]:
    count: Counter[str] = Counter()
    for path in paths:
        count.update(set(_WORD.findall(str(path))))
    return count


def _places(words: Sequence[str], i: int) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return a word with its places from the start and from the end, as ("a", 0), ("a", -2)."""
    return (words[i], i), (words[i], i - len(words))


def _count_places(paths: Sequence[PurePath]) -> Counter[tuple[str, int]]:
    """Return how many paths have a word in a place of a folder or of the name."""
    count: Counter[tuple[str, int]] = Counter()
    for path in paths:
        found = set()
        for words in map(_WORD.findall, path.parts):
            for i in range(len(words)):
                found.update(_places(words, i))
        count.update(found)
    return count


def _without_zeros(paths: Sequence[PurePath]) -> list[PurePath]:
    return [PurePath(_ZEROS.sub("", str(path))) for path in paths]
