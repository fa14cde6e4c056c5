"""Reading every pair of a config's dataloaders and saying, file by file, what is wrong with it.

The files are listed by the datasets themselves and decoded as their pipelines decode them; the
rule for label maps is the one by which `CheckedLoadAnnotations` refuses them in training.
"""

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
from mmcv.transforms import LoadAnnotations
from mmcv.transforms import LoadImageFromFile as LoadImage
from mmengine.config import Config
from mmseg.registry import DATASETS, TRANSFORMS
from PIL import Image

from mmseg_ext.datasets.checked_dataset import CheckedDataset
from mmseg_ext.datasets.checked_image import CheckedLoadImage
from mmseg_ext.datasets.files import as_stored, decode, orientation, read_bytes
from mmseg_ext.datasets.labels import (
    LabelRule,
    decode_label,
    histogram,
    refuse_binary,
    require_size,
)
from mmseg_ext.datasets.metainfo import leaves, transforms
from mmseg_ext.errors import CannotCheckError, LabelError, MissingFileError, UnreadableFileError

SPLITS = ("train", "val", "test")
_PAIRS_PER_TASK = 32


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one file, or with the config.

    `kind` is one of missing-image, missing-mask, mask-without-image, unreadable-image,
    unreadable-mask, mask-format, size-mismatch, label-range, palette-order, all-ignored,
    orientation, binary-masks, listed-twice, shared-name, config. `message` starts with the path;
    `values` holds the pixels of each offending value.
    """

    kind: str
    split: str
    file: str
    message: str
    values: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.split}: {self.kind}: {self.message}"


@dataclass(frozen=True)
class Reading:
    """How a pipeline reads its files; `mask_backend` is None where it loads no label maps."""

    image_backend: str = "cv2"
    color_type: str = "color"
    mask_backend: str | None = "pillow"
    backend_args: dict | None = None


@dataclass(frozen=True)
class Pair:
    """An image and its label map; `mask` is None where the pipeline loads none."""

    image: str
    mask: str | None
    rule: LabelRule | None


@dataclass
class Part:
    """The pairs that one dataset of a split lists, and where it looks for them."""

    pairs: list[Pair]
    reading: Reading
    classes: tuple[str, ...]
    palette: list
    image_folder: str = ""
    mask_folder: str | None = None
    image_suffix: str = ""
    mask_suffix: str = ""

    def name_of(self, image: str) -> str:
        """The part of an image's path that its label map shares."""
        return os.path.relpath(image, self.image_folder).removesuffix(self.image_suffix)


@dataclass
class Split:
    """What a dataloader reads; `aliases` are further dataloaders that read just the same."""

    name: str
    parts: list[Part]
    aliases: list[str] = field(default_factory=list)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.parts[0].classes


@dataclass
class Summary:
    """Counts over the readable pairs of a split.

    `pixels` and `images` are (num_classes,): pixels of each class, and images that show it.
    `tagged` images have an EXIF orientation, which is not applied to them.
    """

    split: str
    classes: tuple[str, ...]
    pairs: int
    pixels: np.ndarray
    images: np.ndarray
    ignored: int = 0
    tagged: int = 0
    sizes: Counter = field(default_factory=Counter)  # of images, (width, height)


@dataclass(frozen=True)
class Seen:
    """What reading one pair has found."""

    problem: Problem | None
    size: tuple[int, int] | None = None  # width, height
    counts: np.ndarray | None = None  # (256,) pixels of each value of a legal label map
    tagged: bool = False  # with an EXIF orientation


# --- what the config reads ----------------------------------------------------------------------


def splits_of(cfg: Config, names: Sequence[str] | None = None) -> tuple[list[Split], list[Problem]]:
    """The splits of `cfg` that its dataloaders read, and what is wrong with the config itself.

    Raises:
        CannotCheckError: if `names` holds a split that the config lacks, or if a dataset cannot
            list its files.
    """
    present = [name for name in SPLITS if cfg.get(f"{name}_dataloader")]
    missing = [name for name in names or () if name not in present]
    if missing or not present:
        raise CannotCheckError(f"the config has no {(missing or SPLITS)[0]}_dataloader")
    splits: list[Split] = []
    problems: list[Problem] = []
    for name in names or present:
        dataset = cfg[f"{name}_dataloader"]["dataset"]
        same = next((s for s in splits if cfg[f"{s.name}_dataloader"]["dataset"] == dataset), None)
        if same is not None:
            same.aliases.append(name)
            continue
        split = Split(name, [_part(leaf, name, problems) for leaf in leaves(dataset)])
        splits.append(split)
        problems += _class_count_problems(cfg, split)
    return splits, problems


def _part(config: dict, split: str, problems: list[Problem]) -> Part:
    reading, reduce = _reading(config.get("pipeline") or ())
    try:
        dataset = DATASETS.build({**config, "pipeline": [], "serialize_data": False})
        dataset.full_init()
        entries = dataset.data_list
    except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        text = str(error) or f"{config.get('type')} fails an assertion: is its data there?"
        raise CannotCheckError(f"{split}: {text}") from error
    classes = tuple(dataset.metainfo.get("classes") or ())
    if not entries or "img_path" not in entries[0]:
        raise CannotCheckError(f"{split}: {config.get('type')} lists no images")
    rule = None
    if reading.mask_backend is not None:
        if not classes:
            raise CannotCheckError(f"{split}: {config.get('type')} has no classes in its metainfo")
        info = {"ignore_index": getattr(dataset, "ignore_index", 255), **entries[0]}
        if reduce is not None and reduce != info.get("reduce_zero_label", False):
            message = (
                f"{config.get('type')}: reduce_zero_label is {info.get('reduce_zero_label')} in "
                f"the dataset and {reduce} in the annotation loader"
            )
            problems.append(Problem("config", split, "", message))
        try:
            rule = LabelRule.from_data_info(info, len(classes))
        except LabelError as error:
            raise CannotCheckError(f"{split}: {config.get('type')}: {error}") from error
    with_masks = rule is not None
    ours = isinstance(dataset, CheckedDataset) or _image_loader(config) is CheckedLoadImage
    if with_masks and ours:
        reading = replace(reading, color_type=as_stored(reading.color_type))
    pairs = [
        Pair(entry["img_path"], entry.get("seg_map_path") if with_masks else None, rule)
        for entry in entries
    ]
    return Part(
        pairs,
        reading,
        classes,
        dataset.metainfo.get("palette") or [],
        image_folder=dataset.data_prefix.get("img_path") or "",
        mask_folder=dataset.data_prefix.get("seg_map_path") if with_masks else None,
        image_suffix=getattr(dataset, "img_suffix", ""),
        mask_suffix=getattr(dataset, "seg_map_suffix", ""),
    )


def _image_loader(config: dict) -> type | None:
    """The class that a dataset's pipeline loads images with."""
    kinds = (TRANSFORMS.get(t["type"]) for t in transforms(config.get("pipeline") or ()))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, LoadImage)), None)


def _reading(pipeline: Iterable) -> tuple[Reading, bool | None]:
    """How `pipeline` reads, and the `reduce_zero_label` that it gives its annotation loader."""
    image: dict = {}
    mask: dict | None = None
    for transform in transforms(pipeline):
        kind = TRANSFORMS.get(transform["type"]) if isinstance(transform["type"], str) else None
        if isinstance(kind, type) and issubclass(kind, LoadAnnotations):
            mask = transform
        elif isinstance(kind, type) and issubclass(kind, LoadImage):
            image = transform
    reading = Reading(
        image.get("imdecode_backend", "cv2"),
        image.get("color_type", "color"),
        None if mask is None else mask.get("imdecode_backend", "pillow"),
        image.get("backend_args"),
    )
    return reading, None if mask is None else mask.get("reduce_zero_label")


def _class_count_problems(cfg: Config, split: Split) -> Iterator[Problem]:
    model = cfg.get("model") or {}
    for key in ("decode_head", "auxiliary_head"):
        heads = model.get(key) or []
        for head in heads if isinstance(heads, list | tuple) else [heads]:
            count = head.get("num_classes")
            if count is not None and split.classes and count != len(split.classes):
                yield Problem(
                    "config",
                    split.name,
                    "",
                    f"model.{key}.num_classes is {count}, the dataset has "
                    f"{len(split.classes)} classes",
                )


# --- what the folders hold ----------------------------------------------------------------------


def listing_problems(splits: Sequence[Split]) -> Iterator[Problem]:
    """Images listed twice by one dataset, and label maps in its folder whose image is missing."""
    parts = [(split, part) for split in splits for part in split.parts]
    for split, part in parts:
        for image, times in Counter(pair.image for pair in part.pairs).items():
            if times > 1:
                yield Problem("listed-twice", split.name, image, f"{image}: listed {times} times")
    known = {pair.mask for _, part in parts for pair in part.pairs}
    seen: set[str] = set()
    for split, part in parts:
        if not part.mask_folder or part.mask_folder in seen or not part.mask_suffix:
            continue
        seen.add(part.mask_folder)  # in VOC's layout the splits share it
        for mask in _files(part.mask_folder, part.mask_suffix):
            name = os.path.relpath(mask, part.mask_folder).removesuffix(part.mask_suffix)
            image = os.path.join(part.image_folder, name + part.image_suffix)
            if mask not in known and not os.path.exists(image):
                message = f"{mask}: has no image {image}"
                yield Problem("mask-without-image", split.name, mask, message)


def _files(folder: str, suffix: str) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(where, name) for name in sorted(names) if name.endswith(suffix))


def shared_name_problems(splits: Sequence[Split]) -> Iterator[Problem]:
    """Images of two splits that have the same name, which as a rule are the same image.

    Validation and test may read just the same images, as they do in most configs.
    """
    images = [
        {part.name_of(pair.image): pair.image for part in split.parts for pair in part.pairs}
        for split in splits
    ]
    for (first, a), (second, b) in combinations(zip(splits, images, strict=True), 2):
        if "train" not in (first.name, second.name) and a == b:
            continue
        for name in sorted(a.keys() & b.keys()):
            same = a[name] == b[name] or _same_content(a[name], b[name])
            message = (
                f"{b[name]}: {name} is also in {first.name} ({a[name]}, "
                f"{'the same' if same else 'another'} image); allow_overlap = True in the config "
                "permits it"
            )
            yield Problem("shared-name", second.name, b[name], message)


def _same_content(a: str, b: str) -> bool:
    try:
        return os.path.getsize(a) == os.path.getsize(b) and Path(a).read_bytes() == (
            Path(b).read_bytes()
        )
    except OSError:  # reported where the file is read
        return False


# --- what the files hold ------------------------------------------------------------------------


def read_pair(pair: Pair, reading: Reading, split: str, palette: Sequence) -> Seen:
    """Decode an image and its label map and find the first thing that is wrong with them."""
    try:
        data = read_bytes(pair.image, reading.backend_args)
        image = decode(data, pair.image, reading.color_type, reading.image_backend)
    except MissingFileError as error:
        return Seen(Problem("missing-image", split, pair.image, str(error)))
    except UnreadableFileError as error:
        return Seen(Problem("unreadable-image", split, pair.image, str(error)))
    size = (image.shape[1], image.shape[0])
    if pair.rule is None or pair.mask is None:
        return Seen(None, size)
    tag = orientation(data)
    if tag != 1 and reading.color_type != as_stored(reading.color_type):
        message = (
            f"{pair.image}: is turned by its EXIF orientation ({tag}) and its label map is not; "
            "CheckedLoadImage, and the datasets of this package, read both as they are stored"
        )
        return Seen(Problem("orientation", split, pair.image, message), size)
    problem, counts = _read_mask(pair, reading, split, image.shape[:2], palette)
    return Seen(problem, size, counts, tag != 1)


def _read_mask(
    pair: Pair, reading: Reading, split: str, size: tuple[int, int], palette: Sequence
) -> tuple[Problem | None, np.ndarray | None]:
    path, rule = pair.mask, pair.rule
    try:
        data = read_bytes(path, reading.backend_args)
        label = decode_label(data, path, reading.mask_backend)
    except MissingFileError as error:
        return Problem("missing-mask", split, path, f"{error}, image {pair.image}"), None
    except UnreadableFileError as error:
        return Problem("unreadable-mask", split, path, str(error)), None
    except LabelError as error:
        return Problem("mask-format", split, path, str(error)), None
    try:
        require_size(label, size, path, pair.image)
    except LabelError as error:
        return Problem("size-mismatch", split, path, str(error)), None
    counts = histogram(label)
    offending = rule.offending(counts)
    if offending:
        message = f"{path}: {rule.describe(offending)}"
        return Problem("label-range", split, path, message, offending), None
    swapped = _palette_problem(path, data, rule, counts, palette)
    if swapped:
        return Problem("palette-order", split, path, f"{path}: {swapped}"), None
    if not rule.class_counts(counts).any():
        values = {int(v): int(counts[v]) for v in np.flatnonzero(counts)}
        message = f"{path}: every pixel is ignored: {_pixels(values)}"
        return Problem("all-ignored", split, path, message, values), counts
    return None, counts


def _pixels(values: dict[int, int]) -> str:
    return ", ".join(f"{value} ({count} pixels)" for value, count in values.items())


_PALETTE_PNG = (b"\x89PNG", b"\x03")  # the first four bytes, and the 26th, the colour type


def _palette_problem(
    path: str, data: bytes, rule: LabelRule, counts: np.ndarray, palette: Sequence
) -> str:
    """Indices whose colours are those of other classes, as a program leaves them that made the
    palette from a colour mask; '' if the colours say nothing of the kind."""
    if (data[:4], data[25:26]) != _PALETTE_PNG or rule.label_map:
        return ""
    flat = Image.open(io.BytesIO(data)).getpalette("RGB")
    colours = np.array(flat, np.uint8).reshape(-1, 3)  # (n, 3)
    class_of = {tuple(colour): i for i, colour in enumerate(palette)}
    if len(class_of) < len(palette):
        return ""
    wrong = []
    for value in np.flatnonzero(counts):
        expected = int(rule.mapped[value])
        if expected == rule.ignore_index:
            continue
        found = class_of.get(tuple(map(int, colours[value]))) if value < len(colours) else None
        if found is None:
            return ""  # a palette for the eye
        if found != expected:
            wrong.append(f"{value} has the colour of class {found}")
    return f"its palette is in another order than the classes: {', '.join(wrong)}" if wrong else ""


@dataclass(frozen=True)
class _Task:
    pairs: list[Pair]
    reading: Reading
    split: str
    palette: list


def _run(task: _Task) -> list[Seen]:
    return [read_pair(pair, task.reading, task.split, task.palette) for pair in task.pairs]


def _one_thread() -> None:
    cv2.setNumThreads(0)


def read_pairs(
    split: Split, workers: int, progress: Callable[[int], None] = lambda pairs: None
) -> Iterator[Seen]:
    """What is seen in each pair of `split`, in order; `workers` = 0 reads in this process.

    `progress` is called with a number of pairs each time that so many more are done.
    """
    tasks = [
        _Task(part.pairs[i : i + _PAIRS_PER_TASK], part.reading, split.name, part.palette)
        for part in split.parts
        for i in range(0, len(part.pairs), _PAIRS_PER_TASK)
    ]
    if workers == 0:
        for task in tasks:
            yield from _run(task)
            progress(len(task.pairs))
        return
    with ProcessPoolExecutor(workers, initializer=_one_thread) as executor:
        for task, seen in zip(tasks, executor.map(_run, tasks), strict=True):
            yield from seen
            progress(len(task.pairs))


def check_split(
    split: Split, workers: int, progress: Callable[[int], None] = lambda pairs: None
) -> tuple[list[Problem], Summary]:
    """Problems of one split's files, and what its readable pairs hold."""
    problems = []
    n = len(split.classes)
    total = sum(len(part.pairs) for part in split.parts)
    summary = Summary(split.name, split.classes, total, np.zeros(n, int), np.zeros(n, int))
    values = np.zeros(256, int)  # of all label maps
    pairs = [pair for part in split.parts for pair in part.pairs]
    for pair, seen in zip(pairs, read_pairs(split, workers, progress), strict=True):
        if seen.problem is not None:
            problems.append(seen.problem)
        if seen.size is not None:
            summary.sizes[seen.size] += 1
        if seen.counts is not None:
            pixels = pair.rule.class_counts(seen.counts)  # (num_classes,)
            summary.pixels += pixels
            summary.images += pixels > 0
            summary.ignored += int(seen.counts.sum() - pixels.sum())
            values += seen.counts
        summary.tagged += seen.tagged
    first = next((pair for pair in pairs if pair.rule is not None), None)
    if first is not None:
        try:
            refuse_binary(values, first.rule.num_classes, first.mask, first.rule)
        except LabelError as error:
            problems.append(Problem("binary-masks", split.name, first.mask, str(error)))
    return problems, summary


def check(
    cfg: Config,
    names: Sequence[str] | None = None,
    workers: int = 0,
    progress: Callable[[int], None] = lambda pairs: None,
    start: Callable[[Sequence[Split]], None] = lambda splits: None,
) -> tuple[list[Split], list[Problem], list[Summary]]:
    """Check the splits `names` of `cfg`, by default all that it has.

    `start` is called with the splits before their files are read, `progress` as by `read_pairs`.

    Raises:
        CannotCheckError: if the config has no such split or a dataset cannot list its files.
    """
    splits, problems = splits_of(cfg, names)
    problems += listing_problems(splits)
    if not cfg.get("allow_overlap", False):
        problems += shared_name_problems(splits)
    start(splits)
    summaries = []
    for split in splits:
        found, summary = check_split(split, workers, progress)
        problems += found
        summaries.append(summary)
    return splits, problems, summaries
