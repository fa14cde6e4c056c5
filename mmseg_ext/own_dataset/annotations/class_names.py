"""The names of classes in a file near the masks, as annotation tools and public data have it.

    labelmap.txt      cat:64,0,128::    of CVAT and others that write PASCAL VOC's folders
    _classes.csv      1, cat            of Roboflow
    class_dict.csv    cat,64,0,128      of public data on Kaggle
    label_colors.txt  64 0 128  cat     of CamVid
    classes.txt       cat               also labelme's class_names.txt and fastai's codes.txt

Without colors and values the first line names the value 0, or 1 if the background is missing, and
in color masks VOC's first color, black, as datumaro writes them.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mmseg.datasets import PascalVOCDataset

from mmseg_ext.own_dataset.annotations.annotation import BACKGROUND
from mmseg_ext.own_dataset.annotations.codes import color_of

_FILES = ("labelmap.txt", "_classes.csv", "class_dict.csv", "label_colors.txt")
_FILES += ("class_names.txt", "codes.txt", "classes.txt")
_NUMBERS_FIRST = re.compile(r"(\d+)(?:[\s,;]+(\d+)[\s,;]+(\d+))?[\s,;:]+(\D.*)")  # 64 0 128  cat
# cat:64,0,128:head,tail:
_NUMBERS_LAST = re.compile(r"(.*?[^\s,;:])[\s,;:]+(\d+)[\s,;]+(\d+)[\s,;]+(\d+)\s*(?::.*)?")
# More names have no known colors.
_VOC_COLORS = ["#" + bytes(color).hex() for color in PascalVOCDataset.METAINFO["palette"]]
_LAST = 255  # the last value, which is mostly ignored


def find_names(
    masks: Collection[Path], texts: Mapping[int, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the names of texts in the order of a file, and notes; no names if no file fits.

    The file is next to masks or at most two folders above all. `texts` has the text of each code
    of the masks. Texts that no mask has get names, too.
    """
    files = _find_files(masks)
    if not files:
        return {}, []
    lines = _read(files[0])
    named = _name_texts(lines, texts)
    is_clear = len(set(named.values())) == len(named) <= _LAST
    if not named or not is_clear:
        return {}, [f"{files[0]}: does not fit the values of the masks; name them with --classes"]
    notes = [f"names of classes: {files[0]}, unless --classes or an earlier run has others"]
    for other in files[1:]:
        if _read(other) != lines:
            notes.append(f"{other}: differs from {files[0]} and is not used")
    return named, notes


def _find_files(masks: Collection[Path]) -> list[Path]:
    """Return the files with the first of the names, the deepest first."""
    folders = {path.parent for path in masks}
    top = Path(os.path.commonpath(folders)).parent.parent
    for folder in list(folders):
        folders.update(above for above in folder.parents if above.is_relative_to(top))
    for name in _FILES:
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if found:
            return sorted(found, key=lambda path: (-len(path.parts), path))
    return []


def _read(file: Path) -> list[tuple[str, str]]:
    """Return the name and the key of each line: #rrggbb, a value, or nothing."""
    text = file.read_text(encoding="utf-8-sig", errors="replace")
    plain, found = [], []
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        plain.append((line.rstrip(":,; "), ""))
        name, numbers = "", []
        if match := _NUMBERS_FIRST.fullmatch(line):
            *numbers, name = match.groups()
        elif match := _NUMBERS_LAST.fullmatch(line):
            name, *numbers = match.groups()
        values = [int(number) for number in numbers if number]
        key = "#" + "".join(f"{value:02x}" for value in values)
        found.append((name, key if len(values) == 3 else "".join(map(str, values))))
    heads = int(file.suffix == ".csv")  # Pixel Value, Class
    if found[heads:] and all(key for _, key in found[heads:]):
        return [pair for pair in found if pair[1]]
    return plain


def _name_texts(lines: Sequence[tuple[str, str]], texts: Mapping[int, str]) -> dict[str, str]:
    """Return the name of each text, in the order of the lines; nothing if they do not fit."""
    present = set(texts.values())
    text_of_color = {}
    for code in sorted(texts, reverse=True):
        text_of_color[f"#{color_of(code):06x}"] = texts[code]
    names, keys = [name for name, _ in lines], [key for _, key in lines]
    numbers = sorted(int(text) for text in present if text.isdigit())
    if not any(keys) and not numbers:
        keys = _VOC_COLORS[: len(names)]
    named = {text_of_color.get(k, k): name for name, k in zip(names, keys, strict=False) if k}
    if len(present & named.keys()) < 2:
        named = _name_numbers(numbers, names, are_values=not any(keys))
    for black in present & {"0", "#000000"}:  # some tools list only objects
        if named and black not in named and BACKGROUND not in map(str.lower, named.values()):
            named = {black: BACKGROUND} | named
    return named


def _name_numbers(numbers: Sequence[int], names: Sequence[str], are_values: bool) -> dict[str, str]:
    """Return the names of the values 0, 1, ..., or of as many `numbers` as there are names."""
    if not numbers:
        return {}
    classes = [number for number in numbers if number != _LAST or len(numbers) < 3]
    every = [names, [BACKGROUND, *names]]
    for given in every:
        if are_values and max(classes) < len(given):
            return dict(zip(map(str, range(len(given))), given, strict=True))
    for given in every:
        if len(given) == len(numbers):
            return dict(zip(map(str, numbers), given, strict=True))
    return {}
