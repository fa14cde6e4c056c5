"""Find the annotation of each image by the words and numbers in their names.

Words that most files of one side have, and few of the other, do not count, such as `image` and
`mask`. Folders count if names repeat. What the names of masks have besides the name of the image,
such as `_leaf` and `_fruit`, is their class if it recurs.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePath

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.images.files import files_below
from mmseg_ext.images.values import IMAGE_SUFFIXES

Key = tuple[str | None, str]  # the split that a folder names; folders and name without suffix

MASK_SUFFIXES = (*IMAGE_SUFFIXES, ".gif")
_MASK = "masks?|labels?|labelids|l|seg(?:mentations?(?:class|object)?)?|gt|groundtruth"
_MASK += "|ann(?:ot(?:ations?)?)?"
_USUAL = f"(?:images?|imgs?|{_MASK})"
_SPLIT = r"(train|val|test)(?:ing|id|idation)?(?:set)?(?:20\d\d)?"
_FOLDER = re.compile(f"(?:{_USUAL}[_-])?(?:{_SPLIT})?[_-]?{_USUAL}?", re.I)
_KIND = "(?:_(?:dir|png|prepped))?(?:_(?:train|val|test))?"  # masks_png, labels_train
_MASK_NAME = re.compile(f"(?:^|[_-]|train|val|test|default)(?:{_MASK}){_KIND}$", re.I)
_MASK_START = re.compile(f"(?!l[_-])(?:{_MASK})[_-]", re.I)
_MASK_WORD = re.compile(_MASK, re.I)
_CLASS_WORD = re.compile("class|cls|category", re.I)
_WORD = re.compile(r"\d+|[^\W\d_]+")
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")


def key_of(path: Path) -> Key:
    """Return the key of a file, whose path is relative to the folder of all images or masks."""
    usual = [_FOLDER.fullmatch(part) for part in path.parts[:-1]]
    splits = [found[1].lower() for found in usual if found and found[1]]
    folders = [part for part, found in zip(path.parts, usual, strict=False) if not found]
    while path.suffix.lower() in (*MASK_SUFFIXES, ".json"):  # twice in a.jpg.json
        path = path.with_suffix("")
    return (splits or [None])[0], "/".join([*folders, path.name])


def keyed_files(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> dict[Path, Key]:
    """Return the files below `folder` with these suffixes, and their keys.

    `folder` may end in a pattern, as in `masks/*_label.png` or `data/*/*_label.png`. Then files in
    deeper folders count, too, and the part that fits the last * is the name.

    Raises:
        ValueError: if there is no such folder.
    """
    parts = folder.parts
    fixed = next((i for i, part in enumerate(parts) if "*" in part), len(parts))
    folder, pattern = Path(*parts[:fixed]), "/".join(parts[fixed:]) or "*"
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    start, _, end = PurePath(pattern).name.partition("*")
    keys = {}
    for path in files_below(folder):
        relative = path.relative_to(folder)
        if path.suffix.lower() in suffixes and relative.match(pattern):
            name = path.name.removeprefix(start).removesuffix(end) or path.name
            keys[path] = key_of(relative.with_name(name))
    return keys


def split_in(name: str) -> str | None:
    """Return the split that is a word of a name, or None."""
    words = [re.fullmatch(_SPLIT, word, re.I) for word in re.split(r"[\W_]+", name)]
    return next((found[1].lower() for found in words if found), None)


def masks_among(paths: Sequence[Path]) -> set[Path]:
    """Return the masks in a folder that also has the images; the paths are relative to it."""
    masks = {p for p in paths if any(map(_MASK_NAME.search, p.with_suffix("").parts))}
    masks = masks or {p for p in paths if _MASK_START.match(p.name)}
    return masks or {p for p in paths if p.suffix.lower() not in (".jpg", ".jpeg")}


def match(
    images: Sequence[Key], annotations: Sequence[Key], exact: bool = False
) -> list[list[int]]:
    """Return the indices of the annotations that fit each image.

    An image gets the only annotation with its path or, if its folder has no annotations, with its
    name. With `exact` all words count. Otherwise, if no complete name fits and every image has a
    separate folder, it gets all annotations there; and 001 fits 1 if no other name has this number.
    """
    own, other = [[PurePath(split or "", n) for split, n in keys] for keys in (images, annotations)]
    found: list[list[int]] = [[] for _ in images]
    for compared in ("paths",) if exact else ("paths", "words", "numbers"):
        if compared == "numbers":
            own, other = _without_zeros(own), _without_zeros(other)
        if compared == "words":
            folders = [path.parent for path in own]
            if not any(found) and len({*folders} - {*map(PurePath, SPLITS)}) == len(own):
                _add_fitting(found, folders, [path.parent for path in other], several=True)
            own, other = _shorten(own, other), _shorten(other, own)
        _add_fitting(found, own, other)
        annotated = {path.parent for path in other}
        names = [PurePath("" if path.parent in annotated else path.name) for path in own]
        _add_fitting(found, names, [PurePath(path.name) for path in other])
    return found


def match_classes(images: Sequence[Key], masks: Sequence[Key]) -> list[dict[str, list[int]]]:
    """Return the indices of each image's masks by class; an empty list if masks have no classes.

    The class of a mask is what its path has besides its image's: words at the end or beginning of
    the name, or a folder. Numbers in the name count masks of a class, except in `class1`. Masks
    have classes if one recurs for most images and another for a tenth; then each that a hundredth
    has is a class.
    """
    own, other = [[PurePath(split or "", n) for split, n in keys] for keys in (images, masks)]
    names = [_join_words(path.parts) for path in _shorten(own, other)]
    repeats = Counter(names)
    index = {name: i for i, name in enumerate(names) if repeats[name] == 1}
    folders = {_join_words(path.parts[:-1]): i for i, path in enumerate(own)}
    if len(folders) == len(own):  # a folder for each image
        index = folders | index
    found: list[dict[str, list[int]]] = [defaultdict(list) for _ in images]
    for number, ((split, _), path) in enumerate(zip(masks, other, strict=True)):
        divided = [part for part in _divide(path, split) if part[0] in index]
        if divided:
            image, folder, rest = min(divided, key=lambda part: len(part[1]) + len(part[2]))
            text = list(folder)
            for before, word in pairwise(["", *rest]):
                if not word.isdigit() or _CLASS_WORD.fullmatch(before):
                    text.append(word)
            is_class = not all(map(_MASK_WORD.fullmatch, text))
            found[index[image]]["_".join(text) if is_class else ""].append(number)
    count = Counter(text for classes in found for text in classes)
    annotated = sum(map(bool, found))
    usual = [text for text, n in count.items() if n >= max(2, annotated / 10)]
    if len(usual) < 2 or "" in usual or max(count.values()) <= annotated / 2:
        return []
    names = sorted(text for text, n in count.items() if text and n >= max(2, annotated / 100))
    return [{text: fits[text] for text in names if text in fits} for fits in found]


def _divide(path: PurePath, split: str | None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield how to divide a mask's path: the image's, and words of a folder and of the name."""
    *folders, name = [_WORD.findall(part) for part in path.parts]
    for place in (None, *range(split is not None, len(folders))):
        folder = [] if place is None else _without_mask(folders[place])
        kept = "".join(" ".join(words) + "/" for i, words in enumerate(folders) if i != place)
        for words in (name, *([_without_mask(name)] if _without_mask(name) != name else [])):
            for n in range(len(words) + 1):
                yield (kept + " ".join(words[:n])).strip("/"), folder, words[n:]
                yield (kept + " ".join(words[n:])).strip("/"), folder, words[:n]


def _without_mask(words: list[str]) -> list[str]:
    return words[:-1] if len(words) > 1 and _MASK_WORD.fullmatch(words[-1]) else words


def _join_words(parts: Sequence[str]) -> str:
    return "/".join(" ".join(_WORD.findall(part)) for part in parts)


def _shorten(paths: Sequence[PurePath], others: Sequence[PurePath]) -> list[PurePath]:
    """Return the paths without the words that most of them have, and few of the others.

    A word that is in a name twice, as in `scene1_1`, goes only where nine of ten paths have it.
    """
    count, other = _count_words(paths), _count_words(others)
    few = min(1, len(others) / max(1, len(paths))) / 2
    usual = {w for w, n in count.items() if n > max(1, len(paths) / 2) and other[w] < few * n}
    places = Counter(
        place
        for path in paths
        for place in {p for part in path.parts for _, both in _words(part) for p in both}
    )

    def is_kept(word: str, both: Sequence[tuple[str, int]], part: str) -> bool:
        if word not in usual:
            return True
        repeated = _WORD.findall(part).count(word) > 1
        return repeated and max(places[place] for place in both) <= 0.9 * len(paths)

    def shortened(part: str) -> str:
        return " ".join(word for word, both in _words(part) if is_kept(word, both, part))

    return [PurePath(*map(shortened, path.parts)) for path in paths]


def _without_zeros(paths: Sequence[PurePath]) -> list[PurePath]:
    return [PurePath(_ZEROS.sub("", str(path))) for path in paths]


def _words(part: str) -> list[tuple[str, tuple[tuple[str, int], tuple[str, int]]]]:
    """Return the words, each with its places: numbered from the start, and from the end."""
    words = _WORD.findall(part)
    return [(word, ((word, i), (word, i - len(words)))) for i, word in enumerate(words)]


def _count_words(paths: Sequence[PurePath]) -> Counter[str]:
    return Counter(word for path in paths for word in set(_WORD.findall(str(path))))


def _add_fitting(
    found: list[list[int]],
    images: Sequence[PurePath],
    annotations: Sequence[PurePath],
    several: bool = False,
) -> None:
    """Add unused annotations to images without one, if their paths are equal and not repeated."""
    used = {number for fits in found for number in fits}
    index: dict[PurePath, list[int]] = defaultdict(list)
    for number, path in enumerate(annotations):
        if number not in used:
            index[path].append(number)
    count = Counter(images)
    for number, path in enumerate(images):
        fits = index[path] if path.name and count[path] == 1 else []
        if not found[number] and (several or len(fits) == 1):
            found[number] = fits
