"""The names of classes in a file near the masks, as annotation tools and public data have it.

Without colors and values the first line names the value 0, or 1 if the background is missing.
"""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mmseg_ext.errors import LabelError
from mmseg_ext.images.files import read_text
from mmseg_ext.own_dataset.annotations.reader import BACKGROUND, plain_name, reading

_COLOR = r"(?P<key>\d+[\s,]+\d+[\s,]+\d+)"  # 64, 0, 128
_LINE = "(?P<key>)(?P<name>.+)"
# The lines of each file. Other lines, such as the titles of columns, are not classes.
_FILES = {
    "labelmap.txt": r"(?P<name>[^:]+):(?P<key>[\d,]*):.*",  # cat:64,0,128:: of CVAT
    "_classes.csv": r"(?P<key>\d+)\s*,\s*(?P<name>.+)",  # 1, cat of Roboflow
    "class_dict.csv": rf"(?P<name>[^,]+),\s*{_COLOR}",  # cat,64,0,128 of data on Kaggle
    "label_colors.txt": rf"{_COLOR}\s+(?P<name>.+)",  # 64 0 128  cat of CamVid
    "class_names.txt": _LINE,  # cat of labelme
    "codes.txt": _LINE,  # of fastai
    "classes.txt": _LINE,
    "dataset_meta.json": "",  # of Datumaro, no lines
}
_LAST = 255  # the last value, which is mostly ignored


def find_names(
    masks: Collection[Path], texts: Mapping[int, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the names of texts in the order of a file, and a note; no names if no file fits.

    The file is next to masks or at most two folders above all. `texts` has the text of each code
    of the masks. Texts that no mask has get names, too.
    """
    folders = {path.parent for path in masks}
    common = Path(os.path.commonpath(folders))
    places = (*sorted(folders), common, *common.parents[:2])
    files = (folder / name for name in _FILES for folder in places)
    file = next(filter(Path.is_file, files), None)
    if file is None:
        return {}, []
    try:
        named = _name_texts(_read(file), texts)
    except LabelError as error:
        return {}, [f"{error}; name the classes with --classes"]
    is_clear = len(set(named.values())) == len(named) <= _LAST
    if not named or not is_clear:
        return {}, [f"{file}: does not fit the values of the masks; name them with --classes"]
    return named, [f"names of classes: {file}, unless --classes or an earlier run has others"]


def _read(file: Path) -> list[tuple[str, str]]:
    """Return the name and the key of each line: #rrggbb, a value, or nothing."""
    found = []
    with reading(file):
        if file.suffix == ".json":
            content = json.loads(file.read_bytes())
            keys = content.get("segmentation_colors") or content["label_map"]
            lines = list(zip(content["label_map"].values(), keys, strict=True))
        else:
            text = read_text(file)
            fits = [re.fullmatch(_FILES[file.name], line.strip()) for line in text.splitlines()]
            lines = [(fit["name"], re.findall(r"\d+", fit["key"])) for fit in fits if fit]
        for name, key in lines:
            if isinstance(key, list):  # R, G and B, or a value
                numbers = list(map(int, key))
                key = "".join(map(str, numbers))
                if len(numbers) == 3:
                    key = "#{:02x}{:02x}{:02x}".format(*numbers)
            found.append((plain_name(name), str(key)))
    return found


def _name_texts(lines: Sequence[tuple[str, str]], texts: Mapping[int, str]) -> dict[str, str]:
    """Return the name of each text, in the order of the lines; nothing if they do not fit."""
    present = set(texts.values())
    text_of_color = {}
    for code in sorted(texts, reverse=True):
        text_of_color[f"#{code & 0xFFFFFF:06x}"] = texts[code]
    named = {text_of_color.get(key, key): name for name, key in lines if key}
    if len(present & named.keys()) < 2:
        named = {}
        if not any(key.isdigit() for _, key in lines):
            numbers = sorted(int(text) for text in present if text.isdigit())
            named = _name_numbers(numbers, [name for name, _ in lines])
    for black in present & {"0", "#000000"}:  # some tools list only objects
        if named and black not in named and BACKGROUND not in map(str.lower, named.values()):
            named = {black: BACKGROUND} | named
    return named


def _name_numbers(numbers: Sequence[int], names: Sequence[str]) -> dict[str, str]:
    """Return the names of the values 0, 1, ..., or of as many `numbers` as there are names."""
    if not numbers:
        return {}
    classes = [number for number in numbers if number != _LAST or len(numbers) < 3]
    every = [names, [BACKGROUND, *names]]
    for given in every:
        if max(classes) < len(given):
            return {str(i): name for i, name in enumerate(given)}
    for given in every:
        if len(given) == len(numbers):
            return dict(zip(map(str, numbers), given, strict=True))
    return {}
