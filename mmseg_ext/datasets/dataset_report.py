"""Read every image and label map of a config's dataloaders, count, and name each problem.

The config's own datasets list the files. A pool of processes reads them as the pipelines do, with
the function by which `CheckedLoadAnnotations` reads label maps.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.config import Config
from mmseg.registry import DATASETS, TRANSFORMS
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from mmseg_ext.datasets.checked_dataset import CheckedDataset
from mmseg_ext.datasets.images import CheckedLoadImage, as_stored, decode, orientation, read_bytes
from mmseg_ext.datasets.labels import histogram, read_label
from mmseg_ext.datasets.metainfo import leaves, transforms
from mmseg_ext.errors import LabelError, LaunchError, UnreadableFileError

SPLITS = ("train", "val", "test")
_SHOWN_SIZES = 5
_PAIRS_PER_TASK = 32


class Problem(NamedTuple):
    """One thing that is wrong with a file, or with a whole split.

    `kind` is one of missing, unreadable, label, all-ignored, orientation, one-class and
    shared-image. `message` starts with the path of the file.
    """

    split: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.split}: {self.kind}: {self.message}"


@dataclass
class Summary:
    """What the readable pairs of a split hold.

    `pixels` and `images` are (num_classes,): pixels of each class, and images that show it.
    `content` maps the digest of each image file to its path.
    """

    split: str
    classes: tuple[str, ...]
    pixels: np.ndarray
    images: np.ndarray
    pairs: int = 0
    ignored: int = 0
    sizes: Counter = field(default_factory=Counter)  # of images, (width, height)
    content: dict[bytes, str] = field(default_factory=dict)

    def absent(self) -> list[str]:
        """Names of the classes without a pixel, if label maps were read."""
        names = zip(self.classes, self.pixels, strict=True)
        return [name for name, pixels in names if pixels == 0] if self.pixels.any() else []

    def add(self, path: str, seen: "Seen") -> None:
        """Count what was seen in the image at `path` and its label map."""
        self.content[seen.digest] = path
        if seen.size is not None:
            self.sizes[seen.size] += 1
        if seen.counts is not None:
            pixels = seen.counts[: len(self.classes)]
            self.pixels += pixels
            self.images += pixels > 0
            self.ignored += int(seen.counts.sum() - pixels.sum())


class Reading(NamedTuple):
    """How a pipeline reads its files; `label_backend` is None if it loads no label maps."""

    image_flag: str
    image_backend: str
    label_backend: str | None
    backend_args: dict | None


class Part(NamedTuple):
    """What one dataset of a split lists."""

    reading: Reading
    classes: tuple[str, ...]
    entries: list[dict]


class Seen(NamedTuple):
    """What reading one pair has found; what could not be read is None."""

    kind: str = ""  # of the problem, with its message
    message: str = ""
    digest: bytes = b""
    size: tuple[int, int] | None = None  # of the image, (width, height)
    counts: np.ndarray | None = None  # (256,) pixels of each class and of the ignored value


def check(
    cfg: Config, names: Sequence[str] | None = None, workers: int = 0
) -> tuple[list[Problem], list[Summary]]:
    """Check the splits `names` of `cfg`, by default all that it has, with `workers` processes.

    A test set that is the validation set is read once. With 0 workers this process reads.

    Raises:
        LaunchError: if the config has no such split or a dataset cannot list its files.
    """
    present = [name for name in SPLITS if cfg.get(f"{name}_dataloader")]
    missing = [name for name in names or () if name not in present]
    if missing or not present:
        raise LaunchError(f"the config has no {(missing or SPLITS)[0]}_dataloader")
    datasets = {name: cfg[f"{name}_dataloader"]["dataset"] for name in names or present}
    if "test" in datasets and datasets["test"] == datasets.get("val"):
        del datasets["test"]
    listed = {
        name: [_part(name, leaf) for leaf in leaves(dataset)] for name, dataset in datasets.items()
    }
    problems: list[Problem] = []
    summaries = []
    for name, parts in listed.items():
        classes = parts[0].classes
        summary = Summary(name, classes, np.zeros(len(classes), int), np.zeros(len(classes), int))
        for reading, _, entries in parts:
            for entry, seen in zip(entries, _look_at_all(entries, reading, workers), strict=True):
                summary.pairs += 1
                summary.add(entry["img_path"], seen)
                if seen.kind:
                    problems.append(Problem(name, seen.kind, seen.message))
        problems += _one_class_problems(summary)
        summaries.append(summary)
    if not cfg.get("allow_overlap", False):
        problems += _shared_image_problems(summaries)
    return problems, summaries


def _part(split: str, config: dict) -> Part:
    """What the dataset of `config` lists, and how its pipeline reads it."""
    kind = config.get("type")
    try:
        dataset = DATASETS.build({**config, "pipeline": [], "serialize_data": False})
        dataset.full_init()
    except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
        text = str(error) or f"{kind} fails an assertion: is its data there?"
        raise LaunchError(f"{split}: {text}") from error
    classes = tuple(dataset.metainfo.get("classes") or ())
    entries = dataset.data_list
    if not classes or not entries or "img_path" not in entries[0]:
        raise LaunchError(f"{split}: {kind} lists no {'images' if classes else 'classes'}")

    steps = []
    for settings in transforms(config.get("pipeline") or ()):
        step = settings["type"]
        steps.append((step if isinstance(step, type) else TRANSFORMS.get(step) or object, settings))
    image = next((t for step, t in steps if issubclass(step, LoadImageFromFile)), {})
    label = next((t for step, t in steps if issubclass(step, LoadAnnotations)), None)
    upright = any(issubclass(step, CheckedLoadImage) for step, _ in steps)
    flag = image.get("color_type", "color")
    reading = Reading(
        as_stored(flag) if label and (upright or isinstance(dataset, CheckedDataset)) else flag,
        image.get("imdecode_backend", "cv2"),
        label and label.get("imdecode_backend", "pillow"),
        image.get("backend_args"),
    )
    known = {"num_classes": len(classes), "ignore_index": getattr(dataset, "ignore_index", 255)}
    if label and label.get("reduce_zero_label") is not None:
        known["reduce_zero_label"] = label["reduce_zero_label"]
    entries = [{**entry, **known} for entry in entries]
    return Part(reading, classes, entries)


def _look_at_all(entries: list[dict], reading: Reading, workers: int) -> Iterator[Seen]:
    console = Console(stderr=True)
    look = partial(look_at, reading=reading)
    with contextlib.ExitStack() as stack:
        seen = map(look, entries)
        if workers > 0:
            pool = ProcessPoolExecutor(workers, initializer=partial(cv2.setNumThreads, 0))
            seen = stack.enter_context(pool).map(look, entries, chunksize=_PAIRS_PER_TASK)
        hidden = not console.is_terminal
        yield from track(seen, "reading", len(entries), console=console, disable=hidden)


def look_at(entry: dict, reading: Reading) -> Seen:
    """Decode an image and its label map, and find the first thing that is wrong with them."""
    path = entry["img_path"]
    digest, size = b"", None
    try:
        data = read_bytes(path, reading.backend_args)
        image = decode(data, path, reading.image_flag, reading.image_backend)
        digest = hashlib.blake2b(data, digest_size=16).digest()
        size = (image.shape[1], image.shape[0])
        if reading.label_backend is None or "seg_map_path" not in entry:
            return Seen("", "", digest, size)
        tag = 1 if reading.image_flag == as_stored(reading.image_flag) else orientation(data)
        if tag != 1:
            message = (
                f"{path}: mmcv turns it by its EXIF orientation ({tag}) and not its label map; "
                "CheckedLoadImage and the datasets of this package read both as they are stored"
            )
            return Seen("orientation", message, digest, size)
        entry = {**entry, "ori_shape": image.shape[:2]}
        label = read_label(entry, reading.label_backend, reading.backend_args)
    except UnreadableFileError as error:
        kind = "missing" if isinstance(error.__cause__, FileNotFoundError) else "unreadable"
        return Seen(kind, str(error), digest, size)
    except LabelError as error:
        return Seen("label", str(error), digest, size)
    counts = histogram(label)
    if not counts[: entry["num_classes"]].any():
        message = f"{entry['seg_map_path']}: every pixel is ignored"
        return Seen("all-ignored", message, digest, size, counts)
    return Seen("", "", digest, size, counts)


def _one_class_problems(summary: Summary) -> Iterator[Problem]:
    if np.count_nonzero(summary.pixels) == 1:
        (index,) = np.flatnonzero(summary.pixels)
        message = (
            f"all pixels that count are of class {index}, so that every model scores 100; masks of "
            "0 and 255 mean two classes: write the other class as 1, as 255 is ignored"
        )
        yield Problem(summary.split, "one-class", message)


def _shared_image_problems(summaries: Iterable[Summary]) -> Iterator[Problem]:
    """Images of the validation or test set that are in the training set, too."""
    by_split = {summary.split: summary.content for summary in summaries}
    train = by_split.pop("train", {})
    for split, content in by_split.items():
        for digest in filter(None, content):
            if digest in train:
                message = (
                    f"{content[digest]}: is the same image as {train[digest]} in train; "
                    "allow_overlap = True in the config permits it"
                )
                yield Problem(split, "shared-image", message)


def tables(summaries: Sequence[Summary]) -> Iterator[Table]:
    """A table of image sizes, and one of classes for each list of classes that occurs."""
    sizes = Table("split", "pairs", "ignored", "image sizes", title="Images")
    for s in summaries:
        sizes.add_row(s.split, f"{s.pairs:,}", _share(s.ignored, s), _sizes(s))
    yield sizes
    for classes in dict.fromkeys(s.classes for s in summaries if s.classes):
        group = [s for s in summaries if s.classes == classes]
        table = Table("", "class", title="Classes: pixels, and images that show the class")
        for s in group:
            for title in (s.split, "", "images"):
                table.add_column(title, justify="right")
        for i, name in enumerate(classes):
            cells: list[str] = []
            for s in group:
                cells += [f"{s.pixels[i]:,}", _share(s.pixels[i], s), f"{s.images[i]:,}"]
            table.add_row(str(i), escape(name), *cells)  # a name may hold [brackets]
        yield table


def _share(pixels: int, summary: Summary) -> str:
    total = summary.ignored + int(summary.pixels.sum())
    return f"{pixels / total:.2%}" if total else "-"


def _sizes(summary: Summary) -> str:
    common = summary.sizes.most_common(_SHOWN_SIZES)
    text = ", ".join(f"{width}x{height} ({count})" for (width, height), count in common)
    others = len(summary.sizes) - len(common)
    return text + (f", {others} others" if others else "") or "-"
