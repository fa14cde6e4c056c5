"""Check every image and label map of a config's dataloaders.

The config's own datasets list the files. Processes read them with `CheckedLoadImage` and
`CheckedLoadAnnotations`, which have the settings of the pipeline's loaders.
"""

import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import cv2
import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile, RandomResize
from mmengine.config import Config
from mmseg.registry import DATASETS
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmseg_ext.datasets.checked_dataset import SPLITS, CheckedDataset
from mmseg_ext.datasets.image_loading import CheckedLoadImage
from mmseg_ext.datasets.label_loading import CheckedLoadAnnotations
from mmseg_ext.engine.config import inner_datasets
from mmseg_ext.errors import SHOWN, LabelError, LaunchError, UnreadableFileError, join_names
from mmseg_ext.images.files import orientation, read_bytes
from mmseg_ext.own_dataset.copies import find_copies, small_version
from mmseg_ext.terminal import progress

_RARE = 1e-4  # share of the pixels
_PAIRS_PER_TASK = 32
_NARROW = 16  # long sides by short sides; less narrow images can be resized
_ONE_CLASS = (
    "all pixels are ignored or of class {}, so every model scores 100; in masks of 0 and 255 write "
    "255 as 1, because 255 is ignored"
)


class Problem(NamedTuple):
    """A problem of a file or of a complete split; `message` starts with the path of the file."""

    split: str
    kind: str  # unreadable, label, one-class or shared-image
    message: str


@dataclass
class Summary:
    """Counts of the readable pairs of a split.

    `pixels` and `images` are (num_classes,): the pixels of each class, and the images with it.
    """

    split: str
    classes: tuple[str, ...]
    pairs: int = 0
    ignored: int = 0
    sizes: Counter = field(default_factory=Counter)  # of images, (width, height)
    samples: list[Mapping] = field(default_factory=list)  # the images in order
    small: list[np.ndarray] = field(default_factory=list)  # their small versions
    # Most pixels of each class in an image, and this sample.
    largest: dict[int, tuple[int, Mapping]] = field(default_factory=dict)
    halves: list[str] = field(default_factory=list)  # label maps with class 0 and ignored pixels
    notes: dict[str, str] = field(default_factory=dict)  # the first image of each note

    def __post_init__(self):
        self.pixels, self.images = np.zeros((2, len(self.classes)), int)

    def add(
        self, sample: Mapping, size: tuple, counts: np.ndarray, small: np.ndarray, note: str = ""
    ) -> None:
        """Count an image of width and height `size`, whose files `sample` names.

        `counts` has the pixels of the classes and ignored values.
        """
        if note:
            self.notes.setdefault(note, sample["img_path"])
        pixels = counts[: len(self.classes)]
        self.samples.append(sample)
        self.small.append(small)
        for i in np.flatnonzero(pixels).tolist():
            if pixels[i] > self.largest.get(i, (0,))[0]:
                self.largest[i] = int(pixels[i]), sample
        moved = sample.get("label_map") or sample.get("reduce_zero_label")
        if not moved and 0 < pixels[0] == pixels.sum() < counts.sum():
            self.halves.append(str(sample.get("seg_map_path")))
        self.pairs += 1
        self.pixels += pixels
        self.images += pixels > 0
        self.ignored += int(counts.sum() - pixels.sum())
        self.sizes[size] += 1


def check(
    cfg: Config, names: Sequence[str] | None = None, workers: int = 0
) -> tuple[list[Problem], list[Summary]]:
    """Check the splits `names` of `cfg`, by default all of them, with `workers` processes.

    A test set that equals the validation set is read once. With 0 workers this process reads.

    Raises:
        LaunchError: if the config lacks a split, a dataset cannot list its files, or the datasets
            have different classes.
    """
    present = [name for name in SPLITS if cfg.get(f"{name}_dataloader")]
    missing = [name for name in names or () if name not in present]
    if missing or not present:
        raise LaunchError(f"the config has no {(missing or SPLITS)[0]}_dataloader")
    datasets = {name: cfg[f"{name}_dataloader"]["dataset"] for name in names or present}
    if "test" in datasets and datasets["test"] == datasets.get("val"):
        del datasets["test"]
    listed = {n: [_list_files(n, c) for c in inner_datasets(d)] for n, d in datasets.items()}
    parts = [part for split in listed.values() for part in split]
    classes, *others = dict.fromkeys(tuple(data.metainfo["classes"]) for data, *_ in parts)
    if others:
        raise LaunchError(f"the datasets have different classes: {classes} and {others[0]}")
    problems: list[Problem] = []
    summaries = [Summary(name, classes) for name in listed]
    for summary in summaries:
        name = summary.split
        for dataset, samples, read in listed[name]:
            results = _map(read, samples, workers)
            for i, (sample, found) in enumerate(zip(samples, results, strict=True)):
                if not isinstance(found, Exception):
                    found = _narrow_error(dataset, i, found[0]) or found
                if isinstance(found, Exception):
                    kind = "label" if isinstance(found, LabelError) else "unreadable"
                    problems.append(Problem(name, kind, str(found)))
                else:
                    summary.add(sample, *found)
        if np.count_nonzero(summary.pixels) == 1:
            problems.append(Problem(name, "one-class", _ONE_CLASS.format(summary.pixels.argmax())))
    if not cfg.get("allow_overlap", False):
        problems += _shared_image_problems(summaries)
    return problems, summaries


def _narrow_error(dataset: Any, index: int, size: tuple) -> UnreadableFileError | None:
    """Return the error that stops a training, if it makes a narrow image as small as it can."""
    if max(size) < _NARROW * min(size) or not isinstance(dataset, CheckedDataset):
        return None
    for step in dataset.pipeline.transforms:
        if isinstance(step, RandomResize) and step.ratio_range:
            step.ratio_range = (min(step.ratio_range), min(step.ratio_range))
    try:
        dataset.prepare_data(index)
    except UnreadableFileError as error:
        return error


def _list_files(split: str, config: dict) -> tuple[Any, list[dict], Callable]:
    """Return the dataset of `config`, its samples, and the check of a sample."""
    kind = config.get("type")
    try:
        dataset = DATASETS.build({**config, "serialize_data": False})
        dataset.full_init()
    except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        text = str(error) or f"{kind} fails an assertion: is its data there?"
        raise LaunchError(f"{split}: {text}") from error
    classes = tuple(dataset.metainfo.get("classes") or ())
    entries = dataset.data_list
    if not classes or not entries or "img_path" not in entries[0]:
        raise LaunchError(f"{split}: {kind} lists no {'images' if classes else 'classes'}")
    steps = dataset.pipeline.transforms
    image: Any = next((t for t in steps if isinstance(t, LoadImageFromFile)), LoadImageFromFile())
    label: Any = next((t for t in steps if isinstance(t, LoadAnnotations)), None)
    rotates = not isinstance(image, CheckedLoadImage)
    if rotates:
        same = dict(imdecode_backend=image.imdecode_backend, backend_args=image.backend_args)
        image = CheckedLoadImage(color_type=image.color_type, **same)
    if label:
        same = dict(imdecode_backend=label.imdecode_backend, backend_args=label.backend_args)
        same["reduce_zero_label"] = label.reduce_zero_label
        label = CheckedLoadAnnotations(len(classes), **same)
        if entries[0].get("seg_map_path") is None:
            raise LaunchError(f"{split}: {kind} lists no label maps, which this command checks")
    ignored = getattr(dataset, "ignore_index", 255)
    samples = [{"ignore_index": ignored, **entry} for entry in entries]
    return dataset, samples, partial(check_pair, image=image, label=label, rotates=rotates)


def _map(read: Callable, samples: list[dict], workers: int) -> Iterator[Any]:
    if workers == 0:  # also for systems that cannot create a pool
        yield from progress(map(read, samples), "reading", len(samples))
        return
    with ProcessPoolExecutor(workers, initializer=partial(cv2.setNumThreads, 0)) as pool:
        found = pool.map(read, samples, chunksize=_PAIRS_PER_TASK)
        yield from progress(found, "reading", len(samples))


def check_pair(
    sample: dict, image: CheckedLoadImage, label: Any, rotates: bool
) -> tuple[tuple[int, int], np.ndarray, np.ndarray, str] | LabelError | UnreadableFileError:
    """Read an image and its label map; return what `Summary.add` counts, or the error.

    `label` is the loader, or None if the pipeline loads no label maps. `rotates` if the pipeline
    applies the EXIF rotation to the image.
    """
    counts = np.zeros(1, int)  # without labels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about dark images, which is in `value_note`
            read: Any = image.transform(
                {"img_path": sample["img_path"]} if rotates else dict(sample)
            )
        if label is not None and "seg_map_path" in sample:
            path = sample["img_path"]
            if rotates and (tag := orientation(read_bytes(path, image.backend_args))) != 1:
                raise LabelError(
                    f"{path}: mmcv rotates the image by its EXIF orientation ({tag}), but not the "
                    "label map; use CheckedLoadImage or a dataset of this package"
                )
            labels = label.transform({**sample, **read, "seg_fields": []})["gt_seg_map"]
            counts = np.bincount(labels.ravel(), minlength=label.num_classes)
            if not counts[: label.num_classes].any():
                raise LabelError(f"{sample['seg_map_path']}: every pixel is ignored")
    except (LabelError, UnreadableFileError) as error:
        return error
    small, note = small_version(read["img"]), read.get("value_note", "")
    return read["ori_shape"][::-1], counts, small, note


def _shared_image_problems(summaries: Iterable[Summary]) -> Iterator[Problem]:
    """Yield the images of the validation or test set that are also in the training set.

    Their small versions are equal. Images of one color are not compared.
    """
    train: dict[bytes, str] = {}
    for summary in sorted(summaries, key=lambda summary: summary.split != "train"):
        for sample, small in zip(summary.samples, summary.small, strict=True):
            path, key = sample["img_path"], small.tobytes()
            if summary.split == "train":
                train[key] = path
            elif key in train and small.any():
                same = f"{path}: is the same image as {train[key]} in train"
                message = f"{same}; allow_overlap = True in the config permits it"
                yield Problem(summary.split, "shared-image", message)


def copy_notes(summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield a line for each split whose images are nearly those of the training set."""
    train = next((s for s in summaries if s.split == "train"), None)
    for summary in summaries:
        if train is None or summary is train:
            continue
        small, count = [*summary.small, *train.small], len(summary.small)
        found = [(others[-1] - count, i) for i, others in find_copies(small, count)]
        if found := [(j, i) for j, i in found if j >= 0]:
            j, i = found[0]
            names = f"{summary.samples[i]['img_path']} of {train.samples[j]['img_path']}"
            yield (
                f"{summary.split}: note: {len(found)} of {summary.pairs} images are copies of "
                f"training images or nearly so, also flipped or turned, such as {names}; the score "
                "will be too high"
            )


def print_summaries(summaries: Sequence[Summary], labels: Mapping[str, int] | None = None) -> None:
    """Print pairs and image sizes of each split, a table of the classes, and absent or rare ones.

    `labels` are the texts of the annotated values, with their classes.
    """
    table = Table("", "class", title="Pixels of each class, and images that show it")
    classes = summaries[0].classes
    cells: list[list[str]] = [[str(i), escape(name)] for i, name in enumerate(classes)]
    for s in summaries:
        sizes = [f"{width}x{height} ({n:,})" for (width, height), n in s.sizes.most_common()]
        total = max(1, s.ignored + int(s.pixels.sum()))
        ignored = f"{s.ignored / total:.2%} of the pixels ignored"
        print(f"{s.split}: {s.pairs:,} pairs, {join_names(sizes)}, {ignored}")
        for note, path in s.notes.items():
            print(f"{s.split}: note: {path}: {note}")
        for title in (s.split, "", "images"):
            table.add_column(title, justify="right")
        for row, pixels, images in zip(cells, s.pixels, s.images, strict=True):
            row += [f"{pixels:,}", f"{pixels / total:.2%}", f"{images:,}"]
    for row in cells:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for s in summaries:
        absent = [s.classes[i] for i in np.flatnonzero(s.pixels == 0)]
        if absent and s.pixels.any():
            print(f"{s.split}: note: no pixel of {join_names(absent)}")
        if s.halves:
            maps = f"{len(s.halves)} label maps, such as {s.halves[0]}, have only class 0"
            print(f"{s.split}: note: {maps} and ignored pixels; if 255 is an object there, write 1")
    texts = {i: text for text, i in (labels or {}).items()}
    first = summaries[0]
    rare = first.pixels < _RARE * first.pixels.sum()
    few = (rare | (first.images == 1) & (first.pairs > 1)) & (first.pixels > 0)
    for i in np.flatnonzero(few)[:SHOWN]:
        is_class = i not in texts or not rare[i]
        hint = "" if is_class else f"; not a class? --ignore {shlex.quote(texts[i])}"
        counts = f"{first.pixels[i]:,} pixels in images: {first.images[i]:,}"
        print(f"{first.split}: note: {first.classes[i]} has only {counts}{hint}")
