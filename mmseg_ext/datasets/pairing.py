"""Find the annotation of each image by their names.

Names are compared without the suffix, without the usual words (`_image`, `_mask`), and without a
beginning or ending that all names of their side share. Folders count if names repeat.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from mmseg_ext.datasets.images import IMAGE_SUFFIXES

Key = tuple[str | None, str]  # the split that a folder names; folders and name without suffix

SPLITS = ("train", "val", "test")
_FOLDERS = {"train": "train", "training": "train", "val": "val", "valid": "val"}
_FOLDERS |= {"validation": "val", "test": "test", "testing": "test"}
_START = r"(^|[_-]|(?<=train)|(?<=val)|(?<=test))"
_IMAGE = re.compile(_START + r"(images?|imgs?|rgb|sat|photos?|leftimg8bit)$", re.I)
_MASK_WORDS = (
    "masks?|labels?|(gtfine_)?labelids|seg(mentations?)?|gt|groundtruth|ann(ot(ations?)?)?"
)
_MASK = re.compile(f"{_START}({_MASK_WORDS})$", re.I)
_ENDING = re.compile(r"[_\-. ](?=[^\W\d_])|(?<=\d)(?=[^\W\d_])")  # where one can begin


def key_of(path: Path) -> Key:
    """Return the key of a file, whose path is relative to the folder of all images or masks."""
    folders = [_MASK.sub("", _IMAGE.sub("", part)) for part in path.parts[:-1]]
    splits = [_FOLDERS[part.lower()] for part in folders if part.lower() in _FOLDERS]
    folders = [part for part in folders if part and part.lower() not in _FOLDERS]
    inner = Path(path.stem)  # of a.jpg.json
    stem = inner.stem if inner.suffix.lower() in IMAGE_SUFFIXES else path.stem
    return (splits or [None])[0], "/".join([*folders, stem])


def masks_among(paths: Sequence[Path]) -> set[Path]:
    """Return the masks in a folder that also has the images; the paths are relative to it."""

    def named(word: re.Pattern) -> set[Path]:
        return {p for p in paths if any(word.search(part) for part in p.with_suffix("").parts)}

    masks = named(_MASK) or {p for p in paths if p.suffix.lower() not in (".jpg", ".jpeg")}
    if len(masks) == len(paths):
        masks -= named(_IMAGE)
    if len(masks) == len(paths):  # a.png and a_L.png
        plain = {p.with_suffix("") for p in paths}
        cuts = ((p, p.stem[: m.start()]) for p in paths for m in _ENDING.finditer(p.stem))
        masks = {p for p, stem in cuts if stem and p.with_name(stem) in plain}
    return masks


def match(images: Sequence[Key], annotations: Sequence[Key]) -> tuple[list[list[int]], bool]:
    """Return the indices of the annotations that fit each image, and whether folders decided.

    If no name fits, all annotations in a folder with a single image fit this image.
    """
    best: list[list[int]] = []
    for cut_image, cut_annotation in product(_cuts(images), _cuts(annotations)):
        shorter = [(split, _shorten(name, *cut_annotation)) for split, name in annotations]
        found = _same_names([(s, _shorten(name, *cut_image)) for s, name in images], shorter)
        if sum(map(bool, found)) > sum(map(bool, best)):
            best = found
        if best and all(best):
            break
    return (best, False) if best else (_same_folders(images, annotations), True)


def _cuts(keys: Sequence[Key]) -> Iterator[tuple[str, str]]:
    """Return the beginnings and endings that the names share, shortest first."""
    stems = sorted({name.rpartition("/")[2] for _, name in keys})
    heads, tails = [""], [""]
    if len(stems) > 1:
        head = re.match(r"[^\W\d_]+([_\-. ]+|(?=\d))", stems[0])
        if head and head[0] and all(stem.startswith(head[0]) for stem in stems):
            heads.append(head[0])
        endings = [stems[0][m.start() :] for m in _ENDING.finditer(stems[0])]
        tails += [e for e in reversed(endings) if all(stem.endswith(e) for stem in stems)]
    return product(heads, tails)


def _shorten(name: str, head: str, tail: str) -> str:
    folder, slash, stem = name.rpartition("/")
    return folder + slash + stem.removeprefix(head).removesuffix(tail)


def _same_names(images: Sequence[Key], annotations: Sequence[Key]) -> list[list[int]]:
    index: dict[Key, list[int]] = defaultdict(list)
    for number, (split, name) in enumerate(annotations):
        for variant in _variants(name, _MASK):
            index[split, variant].append(number)
    found = []
    for split, name in images:
        splits = (split, None) if split else (None, *SPLITS)
        keys = ((s, variant) for variant in _variants(name, _IMAGE) for s in splits)
        found.append(next((index[key] for key in keys if key in index), []))
    return found


def _variants(name: str, word: re.Pattern) -> list[str]:
    base = name.rpartition("/")[2]
    variants = (name, word.sub("", name), base, word.sub("", base))
    return [variant for variant in dict.fromkeys(variants) if variant]


def _same_folders(images: Sequence[Key], annotations: Sequence[Key]) -> list[list[int]]:
    folders = [(split, name.rpartition("/")[0]) for split, name in images]
    members: dict[Key, list[int]] = defaultdict(list)
    for number, (split, name) in enumerate(annotations):
        members[split, name.rpartition("/")[0]].append(number)
    count = Counter(folders)
    return [members[f] if f[1] and count[f] == 1 else [] for f in folders]
