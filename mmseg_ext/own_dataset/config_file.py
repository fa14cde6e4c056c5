"""The config of a project for your own images: `config.py` and `default_runtime.py`."""

import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

import cv2
import numpy as np
from mmengine.config import Config
from PIL import Image

from mmseg_ext.atomic_write import write_text
from mmseg_ext.environment import configs_folder
from mmseg_ext.own_dataset.annotations.annotation import BACKGROUND
from mmseg_ext.own_dataset.channels import Channels
from mmseg_ext.own_dataset.check import Summary
from mmseg_ext.own_dataset.project import Project
from mmseg_ext.own_dataset.starting_weights import Start

LONG_SIDE, CROP = 512, 320  # of the images that the network sees, at most
STEPS, STEPS_WITH_STEM = 12, 8  # iterations per training image, which take the same time
LEAST_IMAGES, MOST_ITERATIONS = 50, 20000  # fewer images are trained as long as 50
VALIDATIONS = 10  # in a training
NARROW, MANY = 8, 0.5  # pixels; share of a class that is not wider, for which tiles are better
RARE = 0.02  # share of the pixels; a rarer class brings class weights
# Okabe and Ito's colors, which color-blind people can tell apart, after gray for the background.
_COLORS = [[80, 80, 80], [230, 159, 0], [86, 180, 233], [0, 158, 115], [240, 228, 66]]
_COLORS += [[0, 114, 178], [213, 94, 0], [204, 121, 167]]
_LOAD = 'dict(type="LoadImageFromFile")'  # by that name mmsegmentation's inferencer finds it
_RESIZED = dict(resize="scale=scale", cut="", test_cfg='mode="whole"')
_TILES = dict(
    resize="scale_factor=1.0",
    cut='    dict(type="RandomCrop", crop_size=scale, cat_max_ratio=0.75),\n',
    test_cfg=f'mode="slide", crop_size=({LONG_SIDE}, {LONG_SIDE}), stride=(448, 448)',
)
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
) -> None:
    """Write `config.py` and its base to `folder`; it fits the sizes and number of the images.

    With `tiles` the network sees parts of the images in full resolution. `channels` describes
    images other than photos. Pictures show `rgb_bands`.

    Raises:
        ValueError: if the images do not have these bands.
    """
    count = channels.count if channels else 3
    if wrong := [band for band in rgb_bands or () if not 1 <= band <= count]:
        raise ValueError(f"--rgb {wrong[0]}: the images have the bands 1 to {count}")
    summaries, colors = project.summaries, project.colors
    train, classes = summaries[0], summaries[0].classes
    short, long = _typical_size(summaries)
    side = min(LONG_SIDE, max(32, int(long) // 32 * 32))
    crop = min(CROP, max(32, int(min(short, side if tiles else side * short / long)) // 32 * 32))
    init = f'dict(type="Pretrained", checkpoint="{start.checkpoint}")' if start.checkpoint else None
    steps = STEPS_WITH_STEM if start.stem else STEPS
    iterations = min(steps * max(train.pairs, LEAST_IMAGES) // 100 * 100, MOST_ITERATIONS)
    others = np.random.RandomState(0).randint(0, 256, (len(classes), 3)).tolist()
    text = (Path(__file__).parent / "config_file.txt").read_text(encoding="utf-8")
    text = Template(text).substitute(
        _TILES if tiles else _RESIZED,
        images=sum(summary.pairs for summary in summaries),
        splits=", ".join(f"{summary.pairs} for {summary.split}" for summary in summaries),
        test_loader=_TEST_LOADER if summaries[-1].split == "test" else "",
        classes=json.dumps(classes, ensure_ascii=False),
        palette=[colors.get(i, rgb) for i, rgb in enumerate([*_COLORS, *others][: len(classes)])],
        # Else mmsegmentation suggests another kind of head.
        num_classes=f"{len(classes)}, out_channels=2" if len(classes) == 2 else len(classes),
        side=crop * 5 // 4 if tiles else side,  # smaller tiles can be cropped, too
        crop=crop,
        load=f'dict(type="CheckedLoadImage", channels={count})' if channels else _LOAD,
        bands=_bands(channels, rgb_bands),
        distortion=' dict(type="PhotoMetricDistortion"),' if count == 3 else "",
        preprocessor="SegDataPreProcessor" if count == 3 else "BandDataPreProcessor",
        in_channels="" if count == 3 else f" in_channels={count},",
        mean=channels.mean if channels else list(start.cfg["mean"]),
        std=channels.std if channels else list(start.cfg["std"]),
        backbone=start.backbone,
        init=init,
        neck=start.neck,
        pyramid="StemFPN" if start.stem else "FPN",
        in_index=[1, 2, 3, 4] if start.stem else [0, 1, 2, 3],
        c1=f" c1_in_channels={start.stem}," if start.stem else "",
        widths=start.widths,
        load_from=json.dumps(start.load_from) if start.load_from else None,
        weights=_class_weights(train.pixels / train.pixels.sum()),
        terms=f"; license: {' '.join(start.terms.split())}" if start.terms else "",
        rate=start.rate,
        iterations=iterations,
        warmup=iterations // 20,
        interval=iterations // VALIDATIONS,
    )
    runtime = configs_folder() / "_base_/default_runtime.py"
    write_text(runtime.read_text(encoding="utf-8"), folder / runtime.name)
    write_text(text, folder / "config.py")


def _typical_size(summaries: Sequence[Summary]) -> np.ndarray:
    """Return the short and the long side such that longer images have half of all pixels.

    The median of the images would be the size of many small ones, to which a few large ones, with
    most of the objects, are then reduced.
    """
    sizes = np.sort([size for summary in summaries for size in summary.sizes.elements()])
    sizes = sizes[sizes[:, 1].argsort()]
    pixels = sizes.prod(1).cumsum()
    return sizes[pixels.searchsorted(pixels[-1] / 2)]


def rename_classes(path: Path, classes: Sequence[str]) -> list[str]:
    """Write the names of the classes to a config; if it has other classes, return them instead."""
    before = list(Config.fromfile(path).get("classes", classes))
    text, line = path.read_text(encoding="utf-8"), "classes = {}\n"
    old, new = (line.format(json.dumps(c, ensure_ascii=False)) for c in (before, classes))
    if old == new:
        return []
    if len(before) != len(classes) or old not in text:
        return before
    write_text(text.replace(old, new, 1), path)
    return []


def about_reduction(train: Summary, side: int) -> str:
    """Return what long sides of `side` do to narrow objects; nothing if no image is reduced.

    In up to a hundred label maps it counts the pixels of parts in which no disk of nine pixels
    fits. The most frequent class and gaps that are `background` are no objects.
    """
    long, most = max(max(size) for size in train.sizes), train.pixels.argmax()
    is_object = [i != most and name != BACKGROUND for i, name in enumerate(train.classes)]
    if long < side + 32 or not any(is_object):  # a side is a multiple of 32
        return ""
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (NARROW + 1, NARROW + 1))
    pixels, narrow = np.zeros((2, len(train.classes)))
    for sample in train.samples[:: -(-len(train.samples) // 100)]:
        label = np.asarray(Image.open(sample["seg_map_path"]))
        if max(label.shape) <= side:
            continue
        size = [max(1, round(n * side / max(label.shape))) for n in label.shape[::-1]]
        label = cv2.resize(label, size, interpolation=cv2.INTER_NEAREST)
        for i in range(len(train.classes)):
            part = (label == i).view(np.uint8)
            pixels[i] += part.sum()
            narrow[i] += (part > cv2.morphologyEx(part, cv2.MORPH_OPEN, disk)).sum()
    share = np.where(is_object, narrow / np.maximum(pixels, 1), -1)
    worst = share.argmax()
    found = f"{share[worst]:.0%} of {train.classes[worst]} is at most {NARROW} pixels wide there"
    if share[worst] > MANY:
        found += "; delete config.py and run again with --tiles, which keeps the full resolution"
    else:
        found += "; so --tiles is not needed"
    return f"images are reduced from {long} to {side} pixels; {found}"


def _bands(channels: Channels | None, rgb_bands: Sequence[int] | None) -> str:
    """Return the lines about the range of the bands, and about those that pictures show."""
    lines = ""
    if channels and channels.value_range:
        lines = "# The values of each band that become 0 and 255, measured in training images.\n"
        lines += f'load["value_range"] = {channels.value_range}\n'
    if channels and channels.colors and channels.count > 3:
        rgb_bands = rgb_bands or (1, 2, 3)
    if rgb_bands:
        lines += f"rgb_bands = {list(rgb_bands)}  # in pictures: the file's bands, from 1 on\n"
    return lines


def _class_weights(share: np.ndarray) -> list[float] | None:
    """Return weights by share^(-1/4) if a class is rare.

    Without weights a short training finds no rare class; with share^(-1/2) frequent classes lose
    their borders (docs/own_dataset.md).
    """
    if share[share > 0].min() >= RARE:
        return None
    raw = np.where(share > 0, np.maximum(share, 1e-9) ** -0.25, 0)
    return [float(f"{min(weight, 20):.3g}") for weight in raw / (raw * share).sum()]
