"""Check every image and label map of a config's dataloaders.

The config's own datasets list the files. Processes read them with `CheckedLoadImage` and
`CheckedLoadAnnotations`, which have the settings of the pipeline's loaders.
"""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmseg.registry import DATASETS

from mmseg_ext.datasets.checked_dataset import SPLITS
from mmseg_ext.datasets.image_loading import CheckedLoadImage
from mmseg_ext.datasets.label_loading import CheckedLoadAnnotations
from mmseg_ext.engine.config import inner_datasets, load_config
from mmseg_ext.engine.run_checks import missing_images
from mmseg_ext.errors import LabelError, LaunchError, UnreadableFileError, join_names
from mmseg_ext.images.files import orientation, read_bytes
from mmseg_ext.own_dataset.classes import CLASSES_FILE, read_classes
from mmseg_ext.own_dataset.copies import (
    add_notes_on_copies,
    find_item_copies,
    small_label,
    small_version,
)
from mmseg_ext.own_dataset.item import Item, Key, Notes, Rank
from mmseg_ext.own_dataset.summary import Split, add_notes_on_pixels
from mmseg_ext.terminal import progress

_PAIRS_PER_TASK = 32


class Problem(NamedTuple):
    """A problem of a file or of a complete split; `message` starts with the path of the file."""

    split: str
    kind: str  # unreadable, label, one-class or shared-image
    message: str


class Checked(NamedTuple):
    """The findings of `check_dataset`."""

    problems: list[Problem]
    splits: list[Split]
    notes: Notes


def check_dataset(
    config: str | Path | Config,
    splits: Sequence[str] | None = None,
    workers: int = 0,
    options: dict | None = None,
) -> Checked:
    """Read every image and label map of a config, and return its problems, splits and notes.

    A test set that equals the validation set is read once. Splits may share images if the config
    has `allow_overlap = True`.

    Args:
        config: name or path of a config, or a config.
        splits: of train, val and test; by default all that the config has.
        workers: processes that read; with 0 this one reads.
        options: settings that replace the config's.

    Raises:
        LaunchError: if the config lacks a split, a dataset cannot list its files, or the datasets
            have different classes.
    """
    cfg = config if isinstance(config, Config) else load_config(str(config), options)
    init_default_scope(cfg.get("default_scope", "mmseg"))
    names = splits or [name for name in SPLITS if cfg.get(f"{name}_dataloader")] or SPLITS
    configs = {}
    for name in names:
        if not cfg.get(f"{name}_dataloader"):
            raise LaunchError(f"the config has no {name}_dataloader")
        configs[name] = cfg[f"{name}_dataloader"]["dataset"]
    if "test" in configs and configs["test"] == configs.get("val"):
        del configs["test"]
    sources: dict[str, list[_Source]] = {}
    for name, settings in configs.items():
        sources[name] = [_list_files(name, part) for part in inner_datasets(settings)]
    classes, *others = dict.fromkeys(
        source.classes for parts in sources.values() for source in parts
    )
    if others:
        raise LaunchError(f"the datasets have different classes: {classes} and {others[0]}")
    problems, found, notes = [], [], Notes()
    for name, parts in sources.items():
        items = []
        listed = sum(len(source.items) for source in parts)
        notes.add(Rank.SCORE, missing_images(cfg, name, listed))
        for source in parts:
            for result in _read_all(source, workers):
                if isinstance(result, Exception):
                    kind = "label" if isinstance(result, LabelError) else "unreadable"
                    problems.append(Problem(name, kind, str(result)))
                    continue
                item, note = result
                items.append(item)
                notes.add(Rank.HINT, note, item.image)
        found.append(Split(name, classes, items))
        if np.count_nonzero(found[-1].pixels) == 1:
            message = (
                f"all pixels are ignored or of class {found[-1].pixels.argmax()}, so every model "
                "scores 100; in masks of 0 and 255 write 255 as 1, because 255 is ignored"
            )
            problems.append(Problem(name, "one-class", message))
    if not cfg.get("allow_overlap", False):
        problems += _shared_images(found)
        items = [item for split in found for item in split.items]
        add_notes_on_copies(items, *find_item_copies(items), notes)
    own = read_classes(Path(cfg.filename).parent / "data") if cfg.filename else None
    if own and tuple(own.names) != classes:
        text = f"{CLASSES_FILE} has {join_names(own.names)}, the config {join_names(classes)}"
        notes.add(Rank.SCORE, f"{text}; run new_project again, which follows the file")
    add_notes_on_pixels(found, notes, own and own.numbers)
    return Checked(problems, found, notes)


class _Source(NamedTuple):
    """A dataset of a split: its classes, its items, and the function that reads one."""

    classes: tuple[str, ...]
    items: list[Item]
    read: Callable


def _list_files(split: str, config: dict) -> _Source:
    """Return the files of `config` with the loaders that read them."""
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
    image: Any = next((s for s in steps if isinstance(s, LoadImageFromFile)), LoadImageFromFile())
    label: Any = next((s for s in steps if isinstance(s, LoadAnnotations)), None)
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
    items = []
    for entry in entries:
        image_path = entry["img_path"]
        sample = {"ignore_index": ignored, **entry}
        items.append(Item(Path(image_path), Key(split, image_path), split=split, sample=sample))
    return _Source(classes, items, partial(_read, image=image, label=label, rotates=rotates))


def _read_all(source: _Source, workers: int) -> Iterator[Any]:
    """Yield what `_read` returns for each item."""
    count = len(source.items)
    if workers == 0:  # also for systems that cannot create a pool
        yield from progress(map(source.read, source.items), "reading", count)
        return
    with ProcessPoolExecutor(workers, initializer=partial(cv2.setNumThreads, 0)) as pool:
        found = pool.map(source.read, source.items, chunksize=_PAIRS_PER_TASK)
        yield from progress(found, "reading", count)


def _read(
    item: Item, image: CheckedLoadImage, label: Any, rotates: bool
) -> tuple[Item, str] | LabelError | UnreadableFileError:
    """Read an image and its label map; return the item with its findings and a note, or an error.

    `label` is the loader, or None if the pipeline loads no label maps. `rotates` if the pipeline
    applies the EXIF rotation to the image.
    """
    sample = dict(item.sample)
    path = sample["img_path"]
    counts, small_map = np.zeros(1, int), None  # without labels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about dark images, which is in `value_note`
            # mmcv's loader knows nothing else of the sample.
            read: Any = image.transform({"img_path": path} if rotates else dict(sample))
        if label is not None and "seg_map_path" in sample:
            if rotates and (tag := orientation(read_bytes(path, image.backend_args))) != 1:
                raise LabelError(
                    f"{path}: mmcv rotates the image by its EXIF orientation ({tag}), but not the "
                    "label map; use CheckedLoadImage or a dataset of this package"
                )
            labels = label.transform({**sample, **read, "seg_fields": []})["gt_seg_map"]
            counts = np.bincount(labels.ravel(), minlength=label.num_classes)
            if not counts[: label.num_classes].any():
                raise LabelError(f"{sample['seg_map_path']}: every pixel is ignored")
            small_map = small_label(labels)
    except (LabelError, UnreadableFileError) as error:
        return error
    small = small_version(read["img"])
    found = dataclasses.replace(item, counts=counts, small=small, small_label=small_map)
    found.size = tuple(read["ori_shape"])
    return found, read.get("value_note", "")


def _shared_images(splits: Sequence[Split]) -> Iterator[Problem]:
    """Yield the images of the validation or test set that are also in the training set.

    Their small versions are equal. Images of one color are not compared.
    """
    train: dict[bytes, str] = {}
    for split in sorted(splits, key=lambda split: split.name != "train"):
        for item in split.items:
            path, key = item.sample["img_path"], item.small.tobytes()
            if split.name == "train":
                train[key] = path
            elif key in train and item.small.any():
                same = f"{path}: is the same image as {train[key]} in train"
                message = f"{same}; allow_overlap = True in the config permits it"
                yield Problem(split.name, "shared-image", message)
