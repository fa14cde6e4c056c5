"""The config of a project for your own images: `config.py` and `default_runtime.py`."""

import json
from pathlib import Path
from string import Template

import numpy as np

from mmseg_ext.atomic_write import write_text
from mmseg_ext.datasets.new_project import Project
from mmseg_ext.environment import configs_folder

LONG_SIDE, CROP = 512, 320  # of the images that the network sees, at most
RARE = 0.02  # share of the pixels; a rarer class brings class weights
# Okabe and Ito's colors, which color-blind people can tell apart, after gray for the background.
_COLORS = [[80, 80, 80], [230, 159, 0], [86, 180, 233], [0, 158, 115], [240, 228, 66]]
_COLORS += [[0, 114, 178], [213, 94, 0], [204, 121, 167]]
_IMAGENET = 'dict(type="Pretrained", checkpoint="open-mmlab://resnet18_v1c")'

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
    load_from: str | None,
    width: int,
    tiles: bool = False,
    terms: str = "",
) -> None:
    """Write `config.py` and its base to `folder`; it fits the sizes and number of the images.

    `load_from` is the file of the weights that training starts from, or 'imagenet' for
    mmsegmentation's ResNet-18. `width` is the base width. With `tiles` the network sees parts of
    the images in full resolution. `terms` is the license of the weights, for a comment.
    """
    summaries, colors = project.summaries, project.colors
    train, classes = summaries[0], summaries[0].classes
    sizes = [size for summary in summaries for size in summary.sizes.elements()]
    short, long = np.median(np.sort(sizes), axis=0)
    side = min(LONG_SIDE, max(32, int(long) // 32 * 32))
    crop = min(CROP, max(32, int(min(short, side if tiles else side * short / long)) // 32 * 32))
    iterations = int(np.clip(12 * train.pairs // 100 * 100, 600, 20000))
    imagenet = load_from == "imagenet"
    others = np.random.RandomState(0).randint(0, 256, (len(classes), 3)).tolist()
    text = (Path(__file__).parent / "project_config.txt").read_text(encoding="utf-8")
    text = Template(text).substitute(
        _TILES if tiles else _RESIZED,
        images=sum(summary.pairs for summary in summaries),
        splits=", ".join(f"{summary.pairs} for {summary.split}" for summary in summaries),
        test_loader=_TEST_LOADER if summaries[-1].split == "test" else "",
        classes=json.dumps(classes, ensure_ascii=False),
        palette=[colors.get(i, rgb) for i, rgb in enumerate([*_COLORS, *others][: len(classes)])],
        num_classes=len(classes),
        side=crop * 5 // 4 if tiles else side,  # smaller tiles can be cropped, too
        crop=crop,
        width=width,
        widths=[width * 2**stage for stage in range(4)],
        init=_IMAGENET if imagenet else None,
        load_from=None if imagenet or not load_from else json.dumps(load_from),
        weights=_class_weights(train.pixels / train.pixels.sum()),
        terms=f"; license: {' '.join(terms.split())}" if terms else "",
        rate=5e-4 if load_from else 2e-3,
        iterations=iterations,
        warmup=iterations // 20,
        interval=iterations // 8,
    )
    runtime = configs_folder() / "_base_/default_runtime.py"
    write_text(runtime.read_text(encoding="utf-8"), folder / runtime.name)
    write_text(text, folder / "config.py")


def _class_weights(share: np.ndarray) -> list[float] | None:
    """Return weights by share^(-1/4) if a class is rare.

    Without weights a short training finds no rare class; with share^(-1/2) frequent classes lose
    their borders (docs/own_dataset.md).
    """
    if share[share > 0].min() >= RARE:
        return None
    raw = np.where(share > 0, np.maximum(share, 1e-9) ** -0.25, 0)
    return [float(f"{min(weight, 20):.3g}") for weight in raw / (raw * share).sum()]
