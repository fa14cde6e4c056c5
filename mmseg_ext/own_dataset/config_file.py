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

import numpy as np
from mmengine.config import Config

from mmseg_ext.atomic_write import write_text
from mmseg_ext.environment import configs_folder
from mmseg_ext.own_dataset.annotations.reader import OBJECT, OBJECT_VALUES
from mmseg_ext.own_dataset.channels import Channels
from mmseg_ext.own_dataset.classes import IGNORED
from mmseg_ext.own_dataset.item import Rank
from mmseg_ext.own_dataset.label_maps import least_areas
from mmseg_ext.own_dataset.project import Project
from mmseg_ext.own_dataset.starting_weights import Start
from mmseg_ext.own_dataset.summary import Split

LONG_SIDE, CROP = 512, 320  # of the images that the network sees, at most
LEAST_IMAGES, MOST_ITERATIONS = 50, 20000  # fewer images are trained as long as 50
VALIDATIONS, LEAST_VALIDATIONS = 10, 2  # in a training
BATCH = 4
ENCODER = "encoder.safetensors"  # in the project: weights of its encoder
RARE = 0.02  # share of the weighted pixels that a class needs, to be found early
SPARSE = 0.5  # share of ignored pixels in training images, from which crops look for others
_FLIPS = ("horizontal", "vertical")
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
    splits, train = project.splits, project.splits[0]
    count = channels.count if channels else 3
    for band in rgb_bands or ():
        if not 1 <= band <= count:
            raise ValueError(f"--rgb {band}: the images have the bands 1 to {count}")
    parts = _class_parts(project) | _network_parts(start)

    # The data: the splits, and the scores of numbered objects.
    iou = 'dict(type="CheckedIoUMetric", iou_metrics=["mIoU"])'
    parts |= dict(
        splits=", ".join(f"{len(split.items)} for {split.name}" for split in splits),
        images=sum(len(split.items) for split in splits),
        test_loader=_TEST_LOADER if splits[-1].name == "test" else "",
        evaluator=iou,
    )
    numbers = project.classes.numbers
    counted = numbers.get(OBJECT, IGNORED)
    if numbers.keys() >= {*OBJECT_VALUES} and counted != IGNORED:
        objects = f'dict(type="ObjectMetric", object_class=classes[{counted}])'
        parts["evaluator"] = f"[\n    {iou}, {objects}]"

    # Views of the images. All turns with one flip would be all views; the other flip is for the
    # test. Random crops of images with few annotated pixels mostly have none.
    parts["flips"] = json.dumps(_FLIPS if any_side_up else _FLIPS[:1])
    parts["turn"] = _TURN if any_side_up else ""
    is_sparse = train.ignored > SPARSE * (train.ignored + train.pixels.sum())
    parts["crop_type"] = "LabeledRandomCrop" if is_sparse else "RandomCrop"
    parts |= _size_parts(splits, tiles, parts["crop_type"])

    # The bands. Photos have the statistics of the network's first training, and mmsegmentation's
    # inferencer finds their loader by its name.
    bands = ""
    parts |= dict(
        load='dict(type="LoadImageFromFile")',
        mean=list(start.cfg["mean"]),
        std=list(start.cfg["std"]),
        distortion=' dict(type="PhotoMetricDistortion"),',
        preprocessor="SegDataPreProcessor",
        in_channels="",
    )
    if channels:
        load = f'dict(type="CheckedLoadImage", channels={count})'
        parts |= dict(load=load, mean=channels.mean, std=channels.std)
        if channels.value_range:
            bands = (
                "# The values of each band that become 0 and 255, measured in training images.\n"
                f'load["value_range"] = {channels.value_range}\n'
            )
        if count != 3:
            parts |= dict(distortion="", preprocessor="BandDataPreProcessor")
            parts["in_channels"] = f" in_channels={count},"
        if channels.colors and count > 3:
            rgb_bands = rgb_bands or (1, 2, 3)
    if rgb_bands:
        bands += f"rgb_bands = {[*rgb_bands]}  # in pictures: the file's bands, from 1 on\n"
    parts["bands"] = bands

    # The length of the training.
    iterations = start.steps * max(len(train.items), LEAST_IMAGES) // 100 * 100
    iterations = min(iterations, MOST_ITERATIONS)
    parts |= dict(iterations=iterations, warmup=iterations // 20, batch=BATCH)
    val = next((split for split in splits if split.name == "val"), train)
    side = None if tiles else parts["side"]
    validations = _validations(val, side, iterations * parts["crop"] ** 2)
    if validations < VALIDATIONS:
        text = f"a validation of these images takes long, so a training has {validations}, not"
        project.notes.add(Rank.HINT, f"{text} {VALIDATIONS}; train_cfg.val_interval changes it")
    parts |= dict(interval=iterations // validations, saving=iterations // VALIDATIONS)

    # The config is the last file, because a further run keeps the others only with it.
    runtime = configs_folder() / "_base_/default_runtime.py"
    write_text(runtime.read_text(encoding="utf-8"), folder / runtime.name)
    text = (Path(__file__).parent / "config_file.txt").read_text(encoding="utf-8")
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
    parts: dict[str, Any] = dict(backbone=start.backbone, decoder=start.decoder)
    checkpoint = start.checkpoint
    if start.weights:
        checkpoint = f"{{{{ fileDirname }}}}/{ENCODER}"
    parts["init"] = f'dict(type="Pretrained", checkpoint="{checkpoint}")' if checkpoint else None
    parts["load_from"] = json.dumps(start.load_from) if start.load_from else None
    parts["terms"] = f"; license: {' '.join(start.terms.split())}" if start.load_from else ""
    parts |= dict(rate=start.rate, slower="")
    if start.backbone_rate != 1:
        share = f'{{"backbone": dict(lr_mult={start.backbone_rate})}}'
        parts["slower"] = f",\n                     paramwise_cfg=dict(custom_keys={share})"
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
        "min_area": least_areas(train),
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


def _multiple_of_32(length: float, most: int) -> int:
    return min(most, max(32, int(length) // 32 * 32))
