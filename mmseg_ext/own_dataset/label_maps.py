"""What some of a project's label maps show: areas of objects, narrow objects, empty crops."""

import cv2
import numpy as np
from mmengine.config import Config

from mmseg_ext.images.files import read, read_bytes
from mmseg_ext.inference.objects import BORDER, NO_OBJECTS
from mmseg_ext.own_dataset.annotations.reader import BACKGROUND
from mmseg_ext.own_dataset.item import Item, Notes, Rank, evenly
from mmseg_ext.own_dataset.summary import Split

NARROW, MANY = 8, 0.5  # pixels; share of a class that is not wider, for which tiles are better
_MAPS_LOOKED_AT, _MAPS_WITH_OBJECTS = 100, 30
# `min_area`: percent of the labeled objects that can be smaller, and objects that a class needs.
_SPECKS, LEAST_OBJECTS = 1, 50


def least_areas(train: Split) -> dict[str, int]:
    """Return the area in pixels that 99 % of the labeled objects of a class have, by its name.

    An object is a connected component of one of up to thirty label maps. Classes with few objects,
    such as a ground that is one component of each image, say nothing of the smallest ones.
    """
    areas: list[list[int]] = [[] for _ in train.classes]
    for item in evenly(train.items, _MAPS_WITH_OBJECTS):
        label = read_label(item)
        for i in np.flatnonzero(item.counts[: len(train.classes)]).tolist():
            of_class = (label == i).view(np.uint8)
            _, _, stats, _ = cv2.connectedComponentsWithStats(of_class, connectivity=4)
            areas[i] += stats[1:, cv2.CC_STAT_AREA].tolist()
    found = {}
    for name, own in zip(train.classes, areas, strict=True):
        if len(own) >= LEAST_OBJECTS and name not in NO_OBJECTS:
            found[name] = int(np.percentile(own, _SPECKS))
    return found


def add_note_on_reduction(train: Split, cfg: Config, notes: Notes) -> None:
    """Add a note on what a config's scale does to narrow objects, if it reduces complete images.

    In up to a hundred label maps it counts the pixels of parts in which no disk of nine pixels
    fits. The most frequent class, gaps that are `background` and a `border`, which is drawn narrow,
    do not count.
    """
    long, most = max(map(max, train.sizes)), train.pixels.argmax()
    is_object = ~np.isin(train.classes, [BACKGROUND, BORDER])
    is_object[most] = False
    mode = cfg.get("model", {}).get("test_cfg", {}).get("mode")  # `slide` with tiles
    side = int(np.max(cfg.get("scale", 0))) if mode == "whole" else 0
    if not side or long < side + 32 or not is_object.any():  # a side is a multiple of 32
        return
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (NARROW + 1, NARROW + 1))
    pixels, narrow = np.zeros((2, len(train.classes)))
    for item in evenly(train.items, _MAPS_LOOKED_AT):
        if max(item.size) <= side:
            continue
        label = read_label(item, side)
        for i in range(len(train.classes)):
            part = (label == i).view(np.uint8)
            wide = cv2.morphologyEx(part, cv2.MORPH_OPEN, disk)
            pixels[i] += part.sum()
            narrow[i] += (part > wide).sum()
    share = np.where(is_object, narrow / np.maximum(pixels, 1), -1)
    worst = int(share.argmax())
    rank = Rank.HINT
    found = f"{share[worst]:.0%} of {train.classes[worst]} is at most {NARROW} pixels wide there"
    if share[worst] > MANY:
        rank = Rank.TRAINING
        found += "; delete config.py and run again with --tiles, which keeps the full resolution"
    else:
        found = f"only {found}; so --tiles is not needed"
    notes.add(rank, f"images are reduced from {long} to {side} pixels; {found}")


def add_note_on_crops(train: Split, cfg: Config, notes: Notes) -> None:
    """Add a note on the share of random crops, of a config's size, without an annotated pixel.

    They are counted in up to thirty label maps, at the long side that the network sees. A config of
    the user's own can lack the settings.
    """
    if not all(map(cfg.get, ("scale", "crop_size", "train_pipeline"))):
        return
    (height, width), side = cfg.crop_size, int(np.max(cfg.scale))
    shares = []
    for item in evenly(train.items, _MAPS_WITH_OBJECTS):
        share = 0.0
        if item.counts[: len(train.classes)].sum() < item.counts.sum():
            label = read_label(item, side if cfg.model.test_cfg.mode == "whole" else None)
            sums = cv2.integral((label < len(train.classes)).view(np.uint8))
            high, wide = min(height, label.shape[0]), min(width, label.shape[1])
            inside = sums[high:, wide:] - sums[:-high, wide:]
            inside -= sums[high:, :-wide] - sums[:-high, :-wide]  # of each place of a crop
            share = float((inside == 0).mean())
        shares.append(share)
    share = float(np.mean(shares))
    if share:
        kinds = {step.get("type") for step in cfg.train_pipeline}
        todo = "the config moves these to an annotated one"
        if "LabeledRandomCrop" not in kinds:
            todo = 'in the config use type="LabeledRandomCrop" for type="RandomCrop"'
        text = f"{share:.1%} of random crops of {width}x{height} pixels have no annotated pixel"
        notes.add(Rank.TRAINING if share > 0.01 else Rank.HINT, f"{text}; {todo}")


def read_label(item: Item, side: int | None = None) -> np.ndarray:
    """Return an item's label map in the project, (H, W), or resized to this long side."""
    path = item.sample["seg_map_path"]
    label = read(read_bytes(path), path).values[..., 0]
    if side is None:
        return label
    size = [max(1, round(side / max(label.shape) * length)) for length in reversed(label.shape)]
    return cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)
