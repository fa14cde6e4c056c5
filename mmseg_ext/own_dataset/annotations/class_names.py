"""The names of classes from a file near the masks, as annotation tools and public data have it.

    labelmap.txt       cat:64,0,128::   CVAT, datumaro and others that write PASCAL VOC's folders
    _classes.csv       1, cat           Roboflow
    class_dict.csv     cat,64,0,128     public data, as on Kaggle
    label_colors.txt   64 0 128  cat    CamVid
    classes.txt        cat              labelme (class_names.txt), fastai (codes.txt), and others

Without colors and values, the first line names the value 0.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmseg_ext.own_dataset.annotations.annotation import BACKGROUND
from mmseg_ext.own_dataset.annotations.codes import color_of

_FILES = ("labelmap.txt", "_classes.csv", "class_dict.csv", "label_colors.txt")
_FILES += ("class_names.txt", "codes.txt", "classes.txt")
# 1, cat  and  64 0 128  cat
_NUMBERS_FIRST = re.compile(r"(\d+)(?:[\s,;]+(\d+)[\s,;]+(\d+))?[\s,;:]+(\D.*)")
# cat,64,0,128  and  cat:64,0,128:head,tail:sits
_NUMBERS_LAST = re.compile(r"(.*?[^\s,;:])[\s,;:]+(\d+)[\s,;]+(\d+)[\s,;]+(\d+)\s*(?::.*)?")
_LAST = 255  # mostly ignored


@dataclass
class ClassNames:
    """The names that a file gives to the texts of values."""

    file: Path
    # In the order of the file, also of texts that no mask has; empty if the file does not fit.
    of_text: dict[str, str]
    note: str = ""


def find_names(masks: Collection[Path], texts: Mapping[int, str]) -> ClassNames | None:
    """Return the names from a file next to masks or in a folder above; None without a file.

    `texts` has the text of each code of the masks.
    """
    files = _find_files(masks)
    if not files:
        return None
    file, *others = files
    lines = _read(file)
    of_text = _name_texts(lines, texts)
    if not of_text:
        return ClassNames(file, {}, f"{file}: does not fit the values of the masks; give --classes")
    for other in others:
        if _read(other) != lines:
            return ClassNames(file, of_text, f"{other}: differs from {file}, which counts")
    return ClassNames(file, of_text)


def _find_files(masks: Collection[Path]) -> list[Path]:
    """Return the files with the first of the names, the deepest first."""
    folders = {path.parent for path in masks}
    top = Path(os.path.commonpath(folders)).parent
    for folder in list(folders):
        folders.update(above for above in folder.parents if above.is_relative_to(top))
    for name in _FILES:
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if found:
            return sorted(found, key=lambda path: (-len(path.parts), path))
    return []


def _read(file: Path) -> list[tuple[str, str]]:
    """Return each name and its key: a color #rrggbb, a value, or nothing."""
    lines = []
    for line in file.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        if line.strip() and not line.startswith("#"):
            lines.append(line.strip())
    found = list(map(_parse, lines))
    kinds = {key[:1] == "#" if key else None for _, key in found[1:]}
    if len(kinds) != 1 or None in kinds:
        return [(line.rstrip(":,; "), "") for line in lines]
    return [(name, key) for name, key in found if key]  # without a header


def _parse(line: str) -> tuple[str, str]:
    if match := _NUMBERS_FIRST.fullmatch(line):
        *numbers, name = match.groups()
    elif match := _NUMBERS_LAST.fullmatch(line):
        name, *numbers = match.groups()
    else:
        return line, ""
    if numbers[-1] is None:
        return name, str(int(numbers[0]))
    return name, "#" + "".join(f"{int(number):02x}" for number in numbers)


def _name_texts(lines: Sequence[tuple[str, str]], texts: Mapping[int, str]) -> dict[str, str]:
    """Return the name of each text, in the order of the lines; nothing if they do not fit."""
    present = set(texts.values())
    text_of_color = {}
    for code in sorted(texts, reverse=True):  # as in the reader's legend
        text_of_color[f"#{color_of(code):06x}"] = texts[code]
    named = {text_of_color.get(key, key): name for name, key in lines if key}
    if len(present & named.keys()) < 2:
        names = [name for name, _ in lines]
        named = _name_numbers(names, present, are_lines=not named)
    for black in present & {"0", "#000000"}:  # some tools list only objects
        if named and black not in named and BACKGROUND not in map(str.lower, named.values()):
            named = {black: BACKGROUND} | named
    is_clear = len(set(named.values())) == len(named) <= _LAST
    return named if is_clear else {}


def _name_numbers(names: Sequence[str], texts: Collection[str], are_lines: bool) -> dict[str, str]:
    """Return the names of values by the numbers of the lines, or by the order of the values.

    Lines without colors can lack the background.
    """
    numbers = sorted(int(text) for text in texts if text.isdigit())
    if not numbers:
        return {}
    offered = [names, [BACKGROUND, *names]] if are_lines else [names]
    classes = [number for number in numbers if number != _LAST or len(numbers) < 3]
    for given in offered:
        if are_lines and max(classes) < len(given):
            return dict(zip(map(str, range(len(given))), given, strict=True))
    for given in offered:
        if len(numbers) == len(given):
            return dict(zip(map(str, numbers), given, strict=True))
    return {}
