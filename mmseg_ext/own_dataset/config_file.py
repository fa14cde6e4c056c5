"""The config of a project for your own images: `config.py` and `default_runtime.py`.

`config_file.txt` is the config with names for the parts that depend on a project: classes, sizes
and bands of the images, the network that the training starts from, and the training's length.
"""

import json
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
from mmseg_ext.inference.objects import BORDER
from mmseg_ext.own_dataset.annotations.annotation import BACKGROUND
from mmseg_ext.own_dataset.annotations.masks import OBJECT, OBJECT_VALUES
from mmseg_ext.own_dataset.channels import Channels
from mmseg_ext.own_dataset.check import Summary
from mmseg_ext.own_dataset.classes import IGNORED
from mmseg_ext.own_dataset.project import Project
from mmseg_ext.own_dataset.selection import evenly
from mmseg_ext.own_dataset.starting_weights import Start

LONG_SIDE, CROP = 512, 320  # of the images that the network sees, at most
STEPS, STEPS_WITH_STEM = 12, 8  # iterations per training image, which take the same time
LEAST_IMAGES, MOST_ITERATIONS = 50, 20000  # fewer images are trained as long as 50
VALIDATIONS = 10  # in a training
NARROW, MANY = 8, 0.5  # pixels; share of a class that is not wider, for which tiles are better
_MAPS_LOOKED_AT = 100
RARE = 0.02  # share of the weighted pixels that a class needs, to be found early
_LOAD = 'dict(type="LoadImageFromFile")'  # by that name mmsegmentation's inferencer finds it
_DISTORTION = ' dict(type="PhotoMetricDistortion"),'
_RESIZED = dict(resize="scale=scale", cut="", test_cfg='mode="whole"')
_TILES = dict(
    resize="scale_factor=1.0",
    cut='    dict(type="RandomCrop", crop_size=scale, cat_max_ratio=0.75),\n',
    test_cfg=f'mode="slide", crop_size=({LONG_SIDE}, {LONG_SIDE}), stride=(448, 448)',
)
_RANGE = """\
# The values of each band that become 0 and 255, measured in training images.
load["value_range"] = {}
"""
_IOU = 'dict(type="CheckedIoUMetric", iou_metrics=["mIoU"])'
_TEST_LOADER = """\
test_dataloader = dict(val_dataloader, dataset=dict(val_dataloader["dataset"], data_prefix=dict(
    img_path="images/test", seg_map_path="annotations/test")))
"""
# Okabe and Ito's colors, which color-blind people can tell apart, after gray for the background.
_COLORS = (
    *([80, 80, 80], [230, 159, 0], [86, 180, 233], [0, 158, 115]),
    *([240, 228, 66], [0, 114, 178], [213, 94, 0], [204, 121, 167]),
)


def write_config(
    folder: Path,
    project: Project,
    start: Start,
    tiles: bool = False,
    channels: Channels | None = None,
    rgb_bands: Sequence[int] | None = None,
) -> None:
    """Write `config.py` and its base to `folder`; it fits the sizes and number of the images.

    With `tiles` the network sees parts of the images in full resolution. `channels` describes
    images other than photos. Pictures show `rgb_bands`.

    Raises:
        ValueError: if the images do not have these bands.
    """
    count = channels.count if channels else 3
    for band in rgb_bands or ():
        if not 1 <= band <= count:
            raise ValueError(f"--rgb {band}: the images have the bands 1 to {count}")
    text = (Path(__file__).parent / "config_file.txt").read_text(encoding="utf-8")
    text = Template(text).substitute(
        _TILES if tiles else _RESIZED,
        **_data_parts(project),
        **_size_parts(project.summaries, tiles),
        **_channel_parts(channels, rgb_bands, start),
        **_network_parts(start),
        **_training_parts(project.summaries[0], start),
    )
    runtime = configs_folder() / "_base_/default_runtime.py"
    write_text(runtime.read_text(encoding="utf-8"), folder / runtime.name)
    write_text(text, folder / "config.py")


def _data_parts(project: Project) -> dict[str, Any]:
    """Return the parts of the config about the images and the classes."""
    summaries = project.summaries
    classes = summaries[0].classes
    num_classes = str(len(classes))
    if len(classes) == 2:
        num_classes += ", out_channels=2"  # else mmsegmentation suggests another kind of head
    splits = ", ".join(f"{summary.pairs} for {summary.split}" for summary in summaries)
    random = np.random.RandomState(0).randint(0, 256, (len(classes), 3)).tolist()
    colors = [*_COLORS, *random][: len(classes)]  # the same ones in each project
    palette = [project.colors.get(i, color) for i, color in enumerate(colors)]
    parts: dict[str, Any] = dict(splits=splits, palette=palette, num_classes=num_classes)
    parts["test_loader"] = ""
    if summaries[-1].split == "test":
        parts["test_loader"] = _TEST_LOADER
    parts["evaluator"] = _IOU
    counted = project.labels.get(OBJECT, IGNORED)
    if set(project.labels) == set(OBJECT_VALUES) and counted != IGNORED:
        objects = f'dict(type="ObjectMetric", object_class=classes[{counted}])'
        parts["evaluator"] = f"[\n    {_IOU}, {objects}]"
    parts["images"] = sum(summary.pairs for summary in summaries)
    parts["classes"] = json.dumps(classes, ensure_ascii=False)
    return parts


def _size_parts(summaries: Sequence[Summary], tiles: bool) -> dict[str, Any]:
    """Return the long side that the network sees, the side of crops, and the images' long sides."""
    long_sides = [max(size) for summary in summaries for size in summary.sizes]
    sides = min(long_sides), max(long_sides)
    short, long = _typical_size(summaries)
    side = _multiple_of_32(long, LONG_SIDE)
    if tiles:
        crop = _multiple_of_32(min(short, side), CROP)
        # Smaller tiles can be cropped, too. Larger ones than the images would enlarge them.
        return {"crop": crop, "side": min(crop * 5 // 4, int(long)), "sides": sides}
    return {"crop": _multiple_of_32(side * short / long, CROP), "side": side, "sides": sides}


def _multiple_of_32(length: float, most: int) -> int:
    return min(most, max(32, int(length) // 32 * 32))


def _channel_parts(
    channels: Channels | None, rgb_bands: Sequence[int] | None, start: Start
) -> dict[str, Any]:
    """Return the parts about the bands of the images; None means photos."""
    parts = dict(load=_LOAD, mean=list(start.cfg["mean"]), std=list(start.cfg["std"]), bands="")
    parts |= dict(distortion=_DISTORTION, preprocessor="SegDataPreProcessor", in_channels="")
    if channels:
        count = channels.count
        parts["load"] = f'dict(type="CheckedLoadImage", channels={count})'
        parts |= dict(mean=channels.mean, std=channels.std)
        if channels.value_range:
            parts["bands"] = _RANGE.format(channels.value_range)
        if count != 3:
            parts |= dict(distortion="", preprocessor="BandDataPreProcessor")
            parts["in_channels"] = f" in_channels={count},"
        if channels.colors and count > 3:
            rgb_bands = rgb_bands or (1, 2, 3)
    if rgb_bands:
        shown = list(rgb_bands)
        parts["bands"] += f"rgb_bands = {shown}  # in pictures: the file's bands, from 1 on\n"
    return parts


def _network_parts(start: Start) -> dict[str, Any]:
    """Return the parts about the network and its weights."""
    parts: dict[str, Any] = dict(
        backbone=start.backbone, neck=start.neck, widths=start.widths, init=None
    )
    parts |= dict(ea_channels=start.ea_channels, channels=start.channels)
    parts |= dict(pyramid="FPN", in_index=[0, 1, 2, 3], c1="", load_from=None, terms="")
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


def _training_parts(train: Summary, start: Start) -> dict[str, Any]:
    """Return the parts about the length of the training, its rate, and the loss."""
    steps = STEPS_WITH_STEM if start.stem else STEPS
    iterations = min(steps * max(train.pairs, LEAST_IMAGES) // 100 * 100, MOST_ITERATIONS)
    return dict(
        weights=_class_weights(train.pixels / train.pixels.sum()),
        rate=start.rate,
        iterations=iterations,
        warmup=iterations // 20,
        interval=iterations // VALIDATIONS,
    )


def _typical_size(summaries: Sequence[Summary]) -> np.ndarray:
    """Return the short and the long side such that longer images have half of all pixels.

    The median of the images would be the size of many small ones, to which a few large ones, with
    most of the objects, are then reduced.
    """
    every: list[tuple[int, int]] = []
    for summary in summaries:
        every += summary.sizes.elements()
    sizes = np.sort(every)
    sizes = sizes[sizes[:, 1].argsort()]
    pixels = sizes.prod(1).cumsum()
    return sizes[pixels.searchsorted(pixels[-1] / 2)]


def rename_classes(path: Path, classes: Sequence[str]) -> list[str]:
    """Write the names of the classes to a config; if it has other classes, return them instead."""
    before = list(Config.fromfile(path).get("classes", classes))
    text = path.read_text(encoding="utf-8")
    old, new = _classes_line(before), _classes_line(classes)
    if old == new:
        return []
    if len(before) != len(classes) or old not in text:
        return before
    write_text(text.replace(old, new, 1), path)
    return []


def _classes_line(classes: Sequence[str]) -> str:
    return f"classes = {json.dumps(classes, ensure_ascii=False)}\n"


def about_reduction(train: Summary, side: int) -> str:
    """Return what long sides of `side` do to narrow objects; nothing if no image is reduced.

    In up to a hundred label maps it counts the pixels of parts in which no disk of nine pixels
    fits. The most frequent class, gaps that are `background` and a `border`, which is drawn narrow,
    do not count.
    """
    long, most = max(map(max, train.sizes)), train.pixels.argmax()
    is_object = ~np.isin(train.classes, [BACKGROUND, BORDER])
    is_object[most] = False
    if long < side + 32 or not is_object.any():  # a side is a multiple of 32
        return ""
    pixels, narrow = np.zeros((2, len(train.classes)))
    for sample in evenly(train.samples, _MAPS_LOOKED_AT):
        label = read(read_bytes(sample["seg_map_path"]), sample["seg_map_path"]).values[..., 0]
        if max(label.shape) > side:
            in_image = _count_narrow(label, side, len(train.classes))
            pixels += in_image[0]
            narrow += in_image[1]
    share = np.where(is_object, narrow / np.maximum(pixels, 1), -1)
    worst = share.argmax()
    found = f"{share[worst]:.0%} of {train.classes[worst]} is at most {NARROW} pixels wide there"
    if share[worst] > MANY:
        found += "; delete config.py and run again with --tiles, which keeps the full resolution"
    else:
        found = f"only {found}; so --tiles is not needed"
    return f"images are reduced from {long} to {side} pixels; {found}"


def _count_narrow(label: np.ndarray, side: int, classes: int) -> np.ndarray:
    """Return the pixels of each class in a reduced label map, and those in narrow parts, (2, N)."""
    height, width = label.shape
    long = max(height, width)
    size = max(1, round(width * side / long)), max(1, round(height * side / long))
    label = cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (NARROW + 1, NARROW + 1))
    counts = np.zeros((2, classes))
    for i in range(classes):
        part = (label == i).view(np.uint8)
        wide = cv2.morphologyEx(part, cv2.MORPH_OPEN, disk)
        counts[:, i] = part.sum(), (part > wide).sum()
    return counts


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
