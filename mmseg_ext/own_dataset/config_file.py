"""The config of a project for your own images: `config.py` and `default_runtime.py`.

`config_file.txt` is the config with names for the parts that depend on a project: classes, sizes
and bands of the images, the network that the training starts from, and the training's length.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import cv2
import numpy as np
from mmengine.config import Config

from mmseg_ext.atomic_write import write_text
from mmseg_ext.environment import configs_folder
from mmseg_ext.images.files import read, read_bytes
from mmseg_ext.inference.objects import BORDER, NO_OBJECTS
from mmseg_ext.own_dataset.annotations.reader import BACKGROUND, OBJECT, OBJECT_VALUES
from mmseg_ext.own_dataset.channels import Channels
from mmseg_ext.own_dataset.classes import IGNORED
from mmseg_ext.own_dataset.item import Item, Notes, Rank, evenly
from mmseg_ext.own_dataset.project import Project
from mmseg_ext.own_dataset.starting_weights import Start
from mmseg_ext.own_dataset.summary import Split

LONG_SIDE, CROP = 512, 320  # of the images that the network sees, at most
STEPS, STEPS_WITH_STEM = 12, 8  # iterations per training image, which take the same time
LEAST_IMAGES, MOST_ITERATIONS = 50, 20000  # fewer images are trained as long as 50
VALIDATIONS, LEAST_VALIDATIONS = 10, 2  # in a training
BATCH = 4
NARROW, MANY = 8, 0.5  # pixels; share of a class that is not wider, for which tiles are better
RARE = 0.02  # share of the weighted pixels that a class needs, to be found early
_MAPS_LOOKED_AT, _MAPS_WITH_OBJECTS = 100, 30
SPARSE = 0.5  # share of ignored pixels in training images, from which crops look for others
# `min_area`: percent of the labeled objects that can be smaller, and objects that a class needs.
_SPECKS, LEAST_OBJECTS = 1, 50
_WAYS = ["horizontal", "vertical"]
_TURN = """\
    # By any angle, because photos have no top. Corners without a pixel are ignored.
    dict(type="RandomRotate", prob=1.0, degree=180.0, pad_val=0, seg_pad_val=255),
"""
_TEST_LOADER = """\
test_dataloader = dict(val_dataloader, dataset=dict(val_dataloader["dataset"], data_prefix=dict(
    img_path="images/test", seg_map_path="annotations/test")))
"""


def write_config(
    folder: Path,
    project: Project,
    start: Start,
    tiles: bool = False,
    channels: Channels | None = None,
    rgb_bands: Sequence[int] | None = None,
    any_side_up: bool = False,
) -> None:
    """Write `config.py` and its base to `folder`; it fits the sizes and number of the images.

    With `tiles` the network sees parts of the images in full resolution. `channels` describes
    images other than photos. Pictures show `rgb_bands`. With `any_side_up` training also turns
    images, and flips them upside down.

    Raises:
        ValueError: if the images do not have these bands.
    """
    splits, classes = project.splits, project.classes
    train = splits[0]
    # All turns with one flip would be all views; the other flip is for the test.
    views = dict(turn=_TURN if any_side_up else "", ways=json.dumps(_WAYS[: 1 + any_side_up]))
    parts = _class_parts(project) | _network_parts(start) | views

    # The data: the splits, and the scores of numbered objects.
    parts["splits"] = ", ".join(f"{len(split.items)} for {split.name}" for split in splits)
    parts["images"] = sum(len(split.items) for split in splits)
    parts["test_loader"] = _TEST_LOADER if splits[-1].name == "test" else ""
    parts["evaluator"] = iou = 'dict(type="CheckedIoUMetric", iou_metrics=["mIoU"])'
    counted = classes.numbers.get(OBJECT, IGNORED)
    if classes.numbers.keys() >= {*OBJECT_VALUES} and counted != IGNORED:
        objects = f'dict(type="ObjectMetric", object_class=classes[{counted}])'
        parts["evaluator"] = f"[\n    {iou}, {objects}]"

    # Random crops of images with few annotated pixels mostly have none.
    is_sparse = train.ignored > SPARSE * (train.ignored + train.pixels.sum())
    parts["crop_type"] = "LabeledRandomCrop" if is_sparse else "RandomCrop"
    parts |= _size_parts(splits, tiles, parts["crop_type"])

    # The bands: photos have the statistics of the network's first training.
    count = channels.count if channels else 3
    for band in rgb_bands or ():
        if not 1 <= band <= count:
            raise ValueError(f"--rgb {band}: the images have the bands 1 to {count}")
    parts |= dict(mean=list(start.cfg["mean"]), std=list(start.cfg["std"]), bands="")
    # By that name mmsegmentation's inferencer finds the loader.
    parts["load"] = 'dict(type="LoadImageFromFile")'
    parts["distortion"] = ' dict(type="PhotoMetricDistortion"),'
    parts |= dict(preprocessor="SegDataPreProcessor", in_channels="")
    if channels:
        parts["load"] = f'dict(type="CheckedLoadImage", channels={count})'
        parts |= dict(mean=channels.mean, std=channels.std)
        if channels.value_range:
            parts["bands"] = (
                "# The values of each band that become 0 and 255, measured in training images.\n"
                f'load["value_range"] = {channels.value_range}\n'
            )
        if count != 3:
            parts |= dict(distortion="", preprocessor="BandDataPreProcessor")
            parts["in_channels"] = f" in_channels={count},"
        if channels.colors and count > 3:
            rgb_bands = rgb_bands or (1, 2, 3)
    if rgb_bands:
        shown = list(rgb_bands)
        parts["bands"] += f"rgb_bands = {shown}  # in pictures: the file's bands, from 1 on\n"

    # The length of the training.
    steps = STEPS_WITH_STEM if start.stem else STEPS
    iterations = min(steps * max(len(train.items), LEAST_IMAGES) // 100 * 100, MOST_ITERATIONS)
    parts |= dict(iterations=iterations, warmup=iterations // 20, batch=BATCH)
    val = next((split for split in splits if split.name == "val"), train)
    side, trained = None if tiles else parts["side"], iterations * parts["crop"] ** 2
    validations = _validations(val, side, trained)
    parts |= dict(interval=iterations // validations, saving=iterations // VALIDATIONS)
    if validations < VALIDATIONS:
        text = f"a validation of these images takes long, so a training has {validations}, not"
        project.notes.add(Rank.HINT, f"{text} {VALIDATIONS}; train_cfg.val_interval changes it")

    text = (Path(__file__).parent / "config_file.txt").read_text(encoding="utf-8")
    runtime = configs_folder() / "_base_/default_runtime.py"
    write_text(runtime.read_text(encoding="utf-8"), folder / runtime.name)
    write_text(Template(text).substitute(parts), folder / "config.py")


def _validations(val: Split, side: int | None, trained: int) -> int:
    """Return how many validations take at most a tenth of the time of the training, 2 to 10.

    They are counted from sizes, because a measured time would differ between equal trainings. On a
    CPU a pixel of the network takes 0.3, and a pixel of the photo, which is decoded, resized and
    compared, 0.08 of the time of a trained pixel.

    Args:
        side: the long side that the network sees; None for the photo's.
        trained: pixels of one image of all batches.
    """
    cost = 0.0
    for (width, height), count in val.sizes.items():
        scale = side / max(width, height) if side else 1
        cost += count * width * height * (0.3 * scale**2 + 0.08)
    return int(np.clip(0.1 * BATCH * trained / max(cost, 1), LEAST_VALIDATIONS, VALIDATIONS))


def _network_parts(start: Start) -> dict[str, Any]:
    """Return the parts about the network and its weights."""
    parts: dict[str, Any] = dict(backbone=start.backbone, widths=start.widths, neck=start.neck)
    parts |= dict(ea_channels=start.ea_channels, channels=start.channels, rate=start.rate)
    parts |= dict(pyramid="FPN", in_index=[0, 1, 2, 3], c1="", terms="", load_from=None, init=None)
    if start.checkpoint:
        parts["init"] = f'dict(type="Pretrained", checkpoint="{start.checkpoint}")'
    if start.stem:
        parts |= dict(pyramid="StemFPN", in_index=[1, 2, 3, 4])
        parts["c1"] = f" c1_in_channels={start.stem},"
    if start.load_from:
        parts["load_from"] = json.dumps(start.load_from)
    if start.terms:
        parts["terms"] = f"; license: {' '.join(start.terms.split())}"
    return parts


def _size_parts(splits: Sequence[Split], tiles: bool, crop_type: str) -> dict[str, Any]:
    """Return the long side that the network sees, crops, and what prediction does with photos."""
    # Images with longer sides than the typical one have half of all pixels. The median of the
    # images would be the size of many small ones, to which a few large ones, with most of the
    # objects, are then reduced.
    every: list[tuple[int, int]] = []
    for split in splits:
        every += split.sizes.elements()
    sizes = np.sort(every)
    sizes = sizes[sizes[:, 1].argsort()]
    pixels = sizes.prod(1).cumsum()
    short, long = sizes[pixels.searchsorted(pixels[-1] / 2)]
    side, sides = _multiple_of_32(long, LONG_SIDE), (int(sizes[0, 1]), int(sizes[-1, 1]))
    if not tiles:
        crop = _multiple_of_32(side * short / long, CROP)
        whole = dict(resize="scale=scale", cut="", test_cfg='mode="whole"')
        return dict(whole, side=side, crop=crop, sides=sides)
    crop = _multiple_of_32(min(short, side), CROP)
    # Smaller tiles can be cropped, too. Larger ones than the images would enlarge them.
    side = min(crop * 5 // 4, int(long))
    cut = f'    dict(type="{crop_type}", crop_size=scale, cat_max_ratio=0.75),\n'
    window = f'mode="slide", crop_size=({LONG_SIDE}, {LONG_SIDE}), stride=(448, 448)'
    slid = dict(resize="scale_factor=1.0", cut=cut, test_cfg=window)
    return dict(slid, side=side, crop=crop, sides=sides)


def follow_classes(path: Path, project: Project) -> bool:
    """Write a project's classes to its config; return False if the config needs other changes.

    In a config with as many classes as before each class keeps its weight and its area, which can
    be edited, also under another name or at another place.
    """
    cfg, text = Config.fromfile(path), path.read_text(encoding="utf-8")
    names, palette = project.classes.names, project.classes.palette
    before = list(cfg.get("classes", ()))
    if before == names and cfg.get("palette") == palette:
        return True
    parts = _class_parts(project)
    keys = list(parts)
    if before == names:
        keys = ["palette"]
    elif len(before) == len(names):
        gone = [name for name in before if name not in names]
        new = [name for name in names if name not in before]
        renamed = dict(zip(new, gone, strict=True))
        former = [renamed.get(name, name) for name in names]
        if "class_weight" not in cfg:  # of an earlier version, which has them in the loss
            keys = ["classes", "palette"]
            if former != before:
                return False
        weights, areas = cfg.get("class_weight"), cfg.get("min_area") or {}
        parts["class_weight"] = weights and [weights[before.index(name)] for name in former]
        pairs = zip(names, former, strict=True)
        parts["min_area"] = {name: areas[old] for name, old in pairs if old in areas}
    for key in keys:
        line = re.compile(
            rf"^{key} = (?:\[.*\]|\{{.*\}}|None)$", re.M
        )  # as `write_config` writes it
        found = line.search(text)
        if found is None:
            return before == names  # with colors of the user's own
        text = f"{text[: found.start()]}{key} = {parts[key]}{text[found.end() :]}"
    write_text(text, path)
    return True


def _class_parts(project: Project) -> dict[str, Any]:
    """Return the lines of the config that follow from the classes, by their names."""
    train, names = project.splits[0], project.classes.names
    return {
        "classes": json.dumps(names, ensure_ascii=False),
        "palette": project.classes.palette,
        "class_weight": _class_weights(train.pixels / train.pixels.sum()),
        "min_area": _least_areas(train),
    }


def _class_weights(share: np.ndarray) -> list[float] | None:
    """Return weights by a power of the share of the pixels, so that rare classes count.

    The power is the first of 0, -1/4, -3/8 and -1/2 with which each class has `RARE` of all
    weights, else -1/2. With a smaller power a short training does not find the class; with a
    larger one frequent classes lose their borders (docs/own_dataset.md).
    """
    found = share > 0
    for power in (0, -1 / 4, -3 / 8, -1 / 2):
        raw = np.where(found, np.maximum(share, 1e-9) ** power, 0)
        weights = raw / (raw * share).sum()  # 1 in the mean of all pixels
        if (weights * share)[found].min() >= RARE:
            break
    if power == 0:
        return None
    return [float(f"{min(weight, 20):.3g}") for weight in weights]


def _least_areas(train: Split) -> dict[str, int]:
    """Return the area in pixels that 99 % of the labeled objects of a class have, by its name.

    An object is a connected component of one of up to thirty label maps. Classes with few objects,
    such as a ground that is one component of each image, say nothing of the smallest ones.
    """
    areas: list[list[int]] = [[] for _ in train.classes]
    for item in evenly(train.items, _MAPS_WITH_OBJECTS):
        label = _read_label(item)
        for i in np.flatnonzero(item.counts[: len(train.classes)]).tolist():
            of_class = (label == i).view(np.uint8)
            _, _, stats, _ = cv2.connectedComponentsWithStats(of_class, connectivity=4)
            areas[i] += stats[1:, cv2.CC_STAT_AREA].tolist()
    found = {}
    for name, own in zip(train.classes, areas, strict=True):
        if len(own) >= LEAST_OBJECTS and name not in NO_OBJECTS:
            found[name] = int(np.percentile(own, _SPECKS))
    return found


def _read_label(item: Item) -> np.ndarray:
    """Return an item's label map in the project, (H, W)."""
    path = item.sample["seg_map_path"]
    return read(read_bytes(path), path).values[..., 0]


def _multiple_of_32(length: float, most: int) -> int:
    return min(most, max(32, int(length) // 32 * 32))


def add_note_on_reduction(train: Split, side: int, notes: Notes) -> None:
    """Add a note on what long sides of `side` do to narrow objects, if an image is reduced.

    In up to a hundred label maps it counts the pixels of parts in which no disk of nine pixels
    fits. The most frequent class, gaps that are `background` and a `border`, which is drawn narrow,
    do not count.
    """
    long, most = max(map(max, train.sizes)), train.pixels.argmax()
    is_object = ~np.isin(train.classes, [BACKGROUND, BORDER])
    is_object[most] = False
    if long < side + 32 or not is_object.any():  # a side is a multiple of 32
        return
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (NARROW + 1, NARROW + 1))
    pixels, narrow = np.zeros((2, len(train.classes)))
    for item in evenly(train.items, _MAPS_LOOKED_AT):
        label = _read_label(item)
        height, width = label.shape
        scale = side / max(height, width)
        if scale >= 1:
            continue
        size = max(1, round(width * scale)), max(1, round(height * scale))
        label = cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)
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

    They are counted in up to thirty label maps, at the long side that the network sees.
    """
    (height, width), side = cfg.crop_size, max(cfg.scale)
    shares = []
    for item in evenly(train.items, _MAPS_WITH_OBJECTS):
        share = 0.0
        if item.counts[: len(train.classes)].sum() < item.counts.sum():
            label = _read_label(item)
            scale = side / max(label.shape)
            if cfg.model.test_cfg.mode == "whole":
                size = [max(1, round(scale * length)) for length in reversed(label.shape)]
                label = cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)
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
