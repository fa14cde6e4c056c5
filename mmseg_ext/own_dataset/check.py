"""Check every image and label map of a config's dataloaders.

The config's own datasets list the files. Processes read them with `CheckedLoadImage` and
`CheckedLoadAnnotations`, which have the settings of the pipeline's loaders. A `Summary` counts
the pairs and pixels of a split; `new_project` fills it while it writes.
"""

import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import cv2
import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.config import Config
from mmseg.registry import DATASETS
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.datasets.image_loading import CheckedLoadImage
from mmseg_ext.datasets.label_loading import CheckedLoadAnnotations
from mmseg_ext.engine.config import inner_datasets
from mmseg_ext.errors import SHOWN, LabelError, LaunchError, UnreadableFileError, join_names
from mmseg_ext.images.files import orientation, read_bytes
from mmseg_ext.own_dataset.copies import find_copies, small_version
from mmseg_ext.terminal import progress

FEW_PIXELS = 1e-4  # share of the pixels
_PAIRS_PER_TASK = 32
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


class _Source(NamedTuple):
    """A dataset of a split, its samples, and the check of a sample."""

    dataset: Any
    samples: list[dict]
    read: Callable


def check(
    cfg: Config, names: Sequence[str] | None = None, workers: int = 0
) -> tuple[list[Problem], list[Summary]]:
    """Check the splits `names` of `cfg`, by default all of them, with `workers` processes.

    A test set that equals the validation set is read once. With 0 workers this process reads.

    Raises:
        LaunchError: if the config lacks a split, a dataset cannot list its files, or the datasets
            have different classes.
    """
    names = names or [name for name in SPLITS if cfg.get(f"{name}_dataloader")] or SPLITS
    configs = {}
    for name in names:
        if not cfg.get(f"{name}_dataloader"):
            raise LaunchError(f"the config has no {name}_dataloader")
        configs[name] = cfg[f"{name}_dataloader"]["dataset"]
    if "test" in configs and configs["test"] == configs.get("val"):
        del configs["test"]
    sources: dict[str, list[_Source]] = {}
    for name, config in configs.items():
        sources[name] = [_list_files(name, part) for part in inner_datasets(config)]
    datasets = [source.dataset for source in chain.from_iterable(sources.values())]
    classes, *others = dict.fromkeys(tuple(dataset.metainfo["classes"]) for dataset in datasets)
    if others:
        raise LaunchError(f"the datasets have different classes: {classes} and {others[0]}")
    problems: list[Problem] = []
    summaries = []
    for name, parts in sources.items():
        summary = Summary(name, classes)
        for source in parts:
            problems += _read_all(source, summary, workers)
        if np.count_nonzero(summary.pixels) == 1:
            problems.append(Problem(name, "one-class", _ONE_CLASS.format(summary.pixels.argmax())))
        summaries.append(summary)
    if not cfg.get("allow_overlap", False):
        problems += _shared_image_problems(summaries)
    return problems, summaries


def _read_all(source: _Source, summary: Summary, workers: int) -> Iterator[Problem]:
    """Read the files of a dataset, count them in the summary, and yield problems."""
    results = _map(source.read, source.samples, workers)
    for sample, found in zip(source.samples, results, strict=True):
        if not isinstance(found, Exception):
            summary.add(sample, *found)
        else:
            kind = "label" if isinstance(found, LabelError) else "unreadable"
            yield Problem(summary.split, kind, str(found))


def _list_files(split: str, config: dict) -> _Source:
    """Return the dataset of `config` with the loaders that read it."""
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
    image: Any = _find_step(dataset, LoadImageFromFile) or LoadImageFromFile()
    label: Any = _find_step(dataset, LoadAnnotations)
    rotates = not isinstance(image, CheckedLoadImage)
    if rotates:
        image = CheckedLoadImage(
            color_type=image.color_type,
            imdecode_backend=image.imdecode_backend,
            backend_args=image.backend_args,
        )
    if label:
        label = CheckedLoadAnnotations(
            len(classes),
            reduce_zero_label=label.reduce_zero_label,
            imdecode_backend=label.imdecode_backend,
            backend_args=label.backend_args,
        )
        if entries[0].get("seg_map_path") is None:
            raise LaunchError(f"{split}: {kind} lists no label maps, which this command checks")
    ignored = getattr(dataset, "ignore_index", 255)
    samples = [{"ignore_index": ignored, **entry} for entry in entries]
    read = partial(check_pair, image=image, label=label, rotates=rotates)
    return _Source(dataset, samples, read)


def _find_step(dataset: Any, kind: type) -> Any:
    """Return the first step of this class in a dataset's pipeline, or None."""
    for step in dataset.pipeline.transforms:
        if isinstance(step, kind):
            return step
    return None


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
            # mmcv's loader knows nothing else of the sample.
            known = {"img_path": sample["img_path"]} if rotates else dict(sample)
            read: Any = image.transform(known)
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
    """Yield a line for each split with images that nearly equal images of the training set."""
    of_split = {summary.split: summary for summary in summaries}
    if "train" not in of_split:
        return
    train = of_split.pop("train")
    for split, summary in of_split.items():
        count = len(summary.small)
        copies = []
        for i, others in find_copies([*summary.small, *train.small], count):
            if others[-1] >= count:
                copies.append((summary.samples[i], train.samples[others[-1] - count]))
        if copies:
            copy, original = copies[0]
            yield (
                f"{split}: note: {len(copies)} of {summary.pairs} images are copies of training "
                "images, also flipped or turned, or as alike as photos of a fixed camera: compare "
                f"{copy['img_path']} and {original['img_path']}; copies make the score too high"
            )


def print_summaries(summaries: Sequence[Summary]) -> None:
    """Print pairs and image sizes of each split, and a table of the classes."""
    for summary in summaries:
        share = summary.ignored / _all_pixels(summary)
        sizes = [f"{width}x{height} ({n:,})" for (width, height), n in summary.sizes.most_common()]
        counts = f"{summary.pairs:,} pairs, {join_names(sizes)}, {share:.2%}"
        print(f"{summary.split}: {counts} of the pixels ignored")
    Console(width=None if sys.stdout.isatty() else 160).print(_class_table(summaries))


def summary_notes(
    summaries: Sequence[Summary], labels: Mapping[str, int] | None = None
) -> list[str]:
    """Return a line for each file with a note, absent class, and rare class.

    Only the first split that shows a class can have a line on it as rare. `labels` are the texts of
    the annotated values, with their classes.
    """
    notes = []
    for summary in summaries:
        notes += _about_absent(summary)
    labels = labels or {}
    texts = dict(zip(labels.values(), labels, strict=True))
    unseen = np.ones(len(summaries[0].classes), bool)  # by the splits before
    for summary in summaries:
        notes += _about_rare(summary, texts, unseen)
        unseen &= summary.pixels == 0
    for summary in summaries:
        for note, path in summary.notes.items():
            notes.append(f"{summary.split}: note: {path}: {note}")
    return notes


def _all_pixels(summary: Summary) -> int:
    """Return the number of pixels, also of ignored ones; 1 if there are none."""
    return max(1, summary.ignored + int(summary.pixels.sum()))


def _class_table(summaries: Sequence[Summary]) -> Table:
    """Return a table with a row for each class, and three columns for each split."""
    table = Table("", "class", title="Pixels of each class, and images that show it")
    for summary in summaries:
        for title in (summary.split, "", "images"):
            table.add_column(title, justify="right")
    for i, name in enumerate(summaries[0].classes):
        cells = [str(i), escape(name)]
        for summary in summaries:
            pixels, images = summary.pixels[i], summary.images[i]
            cells += [f"{pixels:,}", f"{pixels / _all_pixels(summary):.2%}", f"{images:,}"]
        table.add_row(*cells)
    return table


def _about_absent(summary: Summary) -> Iterator[str]:
    """Yield the classes without a pixel, and label maps of only class 0 and ignored pixels."""
    absent = [summary.classes[i] for i in np.flatnonzero(summary.pixels == 0)]
    if absent and summary.pixels.any():
        yield f"{summary.split}: note: no pixel of {join_names(absent)}"
    if summary.halves:
        yield (
            f"{summary.split}: note: {len(summary.halves)} label maps, such as "
            f"{summary.halves[0]}, have only class 0 and ignored pixels; if 255 is an object "
            "there, write 1"
        )


def _about_rare(summary: Summary, texts: Mapping[int, str], asked: np.ndarray) -> Iterator[str]:
    """Yield the classes `asked` for with few pixels or in one image; `texts` name the values."""
    is_rare = summary.pixels < FEW_PIXELS * summary.pixels.sum()
    is_in_one_image = (summary.images == 1) & (summary.pairs > 1)
    few = asked & (is_rare | is_in_one_image) & (summary.pixels > 0)
    for i in np.flatnonzero(few)[:SHOWN]:
        hint = ""
        if is_rare[i] and i in texts:
            hint = f"; not a class? --ignore {shlex.quote(texts[i])}"
        counts = f"{summary.pixels[i]:,} pixels in images: {summary.images[i]:,}"
        yield f"{summary.split}: note: {summary.classes[i]} has only {counts}{hint}"
