"""The data of a project for your own images: pairs of images and label maps in `data/`.

All pairs are read once (`conversion`), then the classes and the splits are chosen, then all files
are written. Sources never change. A second run writes all pairs again. It keeps their splits, which
are in `splits.json`, and the classes in `classes.json`.
"""

import itertools
import json
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmseg_ext.atomic_write import write_text
from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.errors import LabelError, UnreadableFileError
from mmseg_ext.own_dataset.annotations.index_map import StoredMap
from mmseg_ext.own_dataset.annotations.reader import Legend, Reader, notes_of, values_of
from mmseg_ext.own_dataset.check import FEW_PIXELS, Summary
from mmseg_ext.own_dataset.classes import IGNORED, follow_file, update_classes
from mmseg_ext.own_dataset.conversion import (
    ReadPair,
    earlier_images,
    find_turned,
    image_file,
    label_file,
    read_pair,
    write_pair,
)
from mmseg_ext.own_dataset.pairs import Pair, find_sources, pair_sources
from mmseg_ext.own_dataset.split_lists import apply_lists
from mmseg_ext.own_dataset.splits import SplitRule, choose_splits, earlier_splits, write_splits
from mmseg_ext.terminal import progress

_CLASSES_FILE = "classes.json"


@dataclass
class Project:
    """The data of a project."""

    labels: Mapping[str, int]  # the class of the text of each annotated value, or 255
    colors: Mapping[int, list[int]]  # RGB, of classes that have one
    summaries: Sequence[Summary]  # the training set first
    left_out: Sequence[str]  # a line for each file that is not in a pair
    example: Sequence[Path]  # an image and its masks
    earlier: Sequence[Path] = ()  # images of pairs that only earlier runs wrote, still in the data
    notes: Sequence[str] = ()  # what a user should know


def make_project(
    folder: Path,
    images: Path,
    reader: Reader,
    rule: SplitRule,
    classes: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
) -> Project:
    """Write the images and the label maps of a project to `folder`/data.

    `images` is searched with its subfolders; if these are `train`, `val` and `test`, they are the
    splits. `ignored` has values, colors (#rrggbb) or names. The rule is for images whose split is
    in no folder.

    Raises:
        ValueError: if no pair is found, or the values do not fit the classes.
    """
    data = folder / "data"
    sources = find_sources(images, reader, data)
    pairs, left_out = pair_sources(sources, reader)
    earlier = earlier_splits(pairs, data)
    pairs, unlisted, list_notes = apply_lists(pairs, rule.lists, images, earlier)
    left_out += unlisted
    with tempfile.TemporaryDirectory(prefix="mmseg_ext_") as maps:  # a percent of the pixels
        read, problems = _read_pairs(pairs, reader, Path(maps))
        turned_notes = find_turned(read)
        legend = _describe(reader, read, problems)
        names, of_text, class_notes = _choose_classes(data, legend, reader, classes, ignored, read)
        usable = _set_classes(read, legend, of_text, problems)
        left_out += filter(None, map(problems.get, sources.images))  # in order
        shares = _missing_shares(pairs, rule)
        by_name, split_notes = choose_splits(usable, legend, shares, rule, earlier)
        summaries = _summarize(usable, names, data, can_lose_objects(of_text))
        _require_pairs(summaries, left_out)
        write_splits(by_name, data)  # before any file, so a run that is killed keeps them
        dead_links = _remove_dead_links(data)
        only_earlier = _write(usable, data)
    state = {"classes": names, "labels": of_text}
    write_text(json.dumps(state, indent=1), data / _CLASSES_FILE)
    write_text("".join(f"{line}\n" for line in left_out), folder / "left_out.txt")
    return Project(
        labels=of_text,
        colors={of_text.get(text, IGNORED): rgb for text, rgb in legend.colors.items()},
        summaries=summaries,
        left_out=left_out,
        example=(pairs[0].image, *pairs[0].annotation.paths),
        earlier=only_earlier,
        notes=turned_notes
        + _note_on_photos(usable)
        + class_notes
        + list_notes
        + split_notes
        + dead_links,
    )


def can_lose_objects(labels: Mapping[str, int]) -> bool:
    """Return whether some masks can have objects of the value 255, which is ignored, beside 0."""
    return labels.get("0") == 0 and labels.get("255") == IGNORED


def labels_of(folder: Path) -> dict[str, int]:
    """Return the class of the text of each value of a project; nothing for another folder."""
    file = folder / "data" / _CLASSES_FILE
    return json.loads(file.read_text())["labels"] if file.is_file() else {}


def _read_pairs(
    pairs: Sequence[Pair], reader: Reader, maps: Path
) -> tuple[list[ReadPair], dict[Path, str]]:
    """Return the pairs that can be read, and the problem of each other image."""
    read, problems = [], {}
    for i, pair in enumerate(progress(pairs, "reading", len(pairs))):
        try:
            read.append(read_pair(pair, reader, maps / str(i)))
        except (LabelError, UnreadableFileError) as error:
            problems[pair.image] = str(error)
    if not read:
        raise ValueError(problems[pairs[0].image])
    return read, problems


def _describe(reader: Reader, read: Sequence[ReadPair], problems: Mapping[Path, str]) -> Legend:
    """Return what the values mean. If there is only one, a problem or a note is a hint."""
    maps: list[StoredMap] = [part.annotation for part in read]
    legend = reader.describe(maps)
    notes = notes_of(maps)
    if len(values_of(maps)) < 2:
        legend.hint = next(iter([*problems.values(), *notes]), legend.hint)
    legend.notes = [*legend.notes, *notes]
    return legend


def _flag_for_strays(read: Sequence[ReadPair], legend: Legend) -> str:
    """Return the flag that ignores all values of few pixels, as the end of an error."""
    pixels: Counter[str] = Counter()
    for part in read:
        for value, count in zip(part.annotation.values, part.annotation.counts, strict=True):
            pixels[legend.texts[value]] += int(count)
    few = [text for text in legend.labels.values() if pixels[text] < FEW_PIXELS * pixels.total()]
    return f"; to ignore all values of few pixels: --ignore {shlex.join(few)}" if few else ""


def _choose_classes(
    data: Path,
    legend: Legend,
    reader: Reader,
    names: Sequence[str] | None,
    ignored: Sequence[str],
    read: Sequence[ReadPair],
) -> tuple[list[str], dict[str, int], list[str]]:
    """Return the classes, the class of each text or 255, and notes; an earlier run's stay."""
    file = data / _CLASSES_FILE
    before = json.loads(file.read_text()) if file.is_file() else None
    are_named = bool(names or legend.names or before)
    if legend.problem and not are_named:
        raise ValueError(legend.problem)
    ignored = list(ignored)
    for text in reader.ignored:
        if text in legend.labels.values():
            ignored.append(text)
    labels, listed, given = legend.labels, legend.names, names
    if listed:
        known = before["labels"] if before else ()
        labels, given, ignored = follow_file(labels, listed, known, names, ignored)
    elif not names and before is None:
        given = reader.class_names
    try:
        found, of_text, notes = update_classes(before, labels, given, ignored, listed)
    except ValueError as error:
        where = "" if before is None else f"{data.parent}: "
        hint = f"; {legend.hint}" if legend.hint else ""
        strays = _flag_for_strays(read, legend)
        raise ValueError(f"{where}{error}{hint}{strays}") from None
    notes = [*notes, *legend.notes]
    if legend.hint and not names:
        notes.append(legend.hint)
    return found, of_text, notes


def _set_classes(
    read: Sequence[ReadPair],
    legend: Legend,
    of_text: Mapping[str, int],
    problems: dict[Path, str],
) -> list[ReadPair]:
    """Set the classes of pairs; return the pairs, without those that are a problem: all ignored."""
    usable = []
    for part in read:
        of_index = [of_text[legend.texts[value]] for value in part.annotation.values]
        part.classes = np.array(of_index, np.uint8)
        counts = part.count_classes()
        if counts[IGNORED] == counts.sum():
            path = part.pair.annotation.path
            problems[part.pair.image] = f"{path}: all its pixels are ignored"
        else:
            usable.append(part)
    return usable


def _note_on_photos(usable: Sequence[ReadPair]) -> list[str]:
    """Return a note if most photos have as few colors as masks, such as those of one class."""
    found = [part for part in usable if part.colors <= len(part.annotation.values)]
    if 2 * len(found) <= len(usable):
        return []
    return [
        f"{len(found)} of {len(usable)} photos, such as {found[0].pair.image}, have no more colors "
        "than their annotations; if they are masks, give only the folder of photos to --images"
    ]


def _missing_shares(pairs: Sequence[Pair], rule: SplitRule) -> dict[str, float]:
    """Return the shares of the splits that are to be chosen, because no folder names them."""
    given = {pair.split for pair in pairs}
    shares = {}
    for split, share in (("test", rule.test_share), ("val", rule.val_share)):
        if share and split not in given:
            shares[split] = share
    return shares


def _summarize(
    usable: Sequence[ReadPair], classes: Sequence[str], data: Path, can_lose: bool
) -> list[Summary]:
    """Return the summaries of train, val and, if it has pairs, test."""
    summaries = {split: Summary(split, tuple(classes)) for split in SPLITS}
    for part in usable:
        split = str(part.pair.split)
        image, label = image_file(data, part.pair), label_file(data, split, part.pair.name)
        sample = {"img_path": str(image), "seg_map_path": str(label)}
        summaries[split].add(sample, part.size[::-1], part.count_classes(), part.small)
        if not can_lose:
            summaries[split].halves.clear()
    if not summaries["test"].pairs:
        del summaries["test"]
    return list(summaries.values())


def _require_pairs(summaries: Sequence[Summary], left_out: Sequence[str]) -> None:
    for summary in summaries:
        if not summary.pairs:
            needed = (
                "a project needs at least two pairs or groups, and a folder train if val has one"
            )
            reason = "; ".join([needed, *left_out[-1:]])
            raise ValueError(f"{summary.split}: no pair is usable; {reason}")


def _remove_dead_links(data: Path) -> list[str]:
    """Remove links of earlier runs to photos that are gone, and return a note."""
    gone = sorted(link for link in data.glob("images/**/*") if not link.exists())
    for link in gone:
        link.unlink()
    if not gone:
        return []
    return [f"{len(gone)} links to photos that are gone are removed, such as {gone[0]}"]


def _write(usable: Sequence[ReadPair], data: Path) -> list[Path]:
    """Write the images and label maps to their splits; return images of only earlier runs."""
    earlier = earlier_images(data)
    for part in progress(usable, "writing", len(usable)):
        write_pair(part, data, earlier)
    return sorted(itertools.chain.from_iterable(earlier.values()))
