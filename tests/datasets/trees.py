"""Tiny datasets on disk in the layouts of the dataset bases, with a config that reads them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmseg.datasets import PascalVOCDataset
from PIL import Image

from tests.configs import CONFIGS

SIZE = (24, 18)  # width, height
BASES = {
    "voc": "voc_published",
    "ade20k": "ade20k",
    "cityscapes": "cityscapes_769x769",
    "camvid": "camvid",
}


@dataclass
class Tree:
    """A dataset; `pairs[split]` is a list of (image, label map)."""

    layout: str
    root: Path
    pairs: dict[str, list[tuple[Path, Path]]]

    def image(self, split: str = "train", index: int = 0) -> Path:
        return self.pairs[split][index][0]

    def mask(self, split: str = "train", index: int = 0) -> Path:
        return self.pairs[split][index][1]

    def config(self) -> Config:
        """Return the dataset base of this layout, reading this tree."""
        cfg = Config.fromfile(CONFIGS / "_base_" / "datasets" / f"{BASES[self.layout]}.py")
        set_data_root(cfg, self.root)
        return cfg

    def write_config(self, text: str = "") -> Path:
        """Write the config to a file, with `text` appended, and return its path."""
        path = self.root.parent / f"{self.layout}.py"
        settings = self.config().to_dict().items()
        path.write_text("".join(f"{key} = {value!r}\n" for key, value in settings) + text)
        return path


def set_data_root(cfg: Config, root: Path) -> None:
    """Point every dataset of the config's dataloaders at `root`."""
    for dataset in datasets(cfg):
        dataset["data_root"] = str(root)


def datasets(cfg: Config) -> Iterator[dict]:
    """Yield the dataset configs that name files, from every dataloader."""
    pending = [cfg[f"{split}_dataloader"]["dataset"] for split in ("train", "val", "test")]
    while pending:
        dataset = pending.pop()
        pending += dataset.get("datasets", [])
        if "datasets" not in dataset:
            yield dataset


def make_tree(layout: str, root: Path) -> Tree:
    """Write a valid dataset of a few pairs to `root`/data."""
    rng = np.random.RandomState(0)
    root = root / "data"
    return _voc(root, rng) if layout == "voc" else _in_folders(layout, root, rng)


def save_image(path: Path, rng: np.random.RandomState, size=SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.randint(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def save_mask(path: Path, label: np.ndarray, indexed: bool = False) -> None:
    """Write `label` (H, W); as a palette image with VOC's colors if `indexed`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(label)
    if indexed:
        image.putpalette(np.ravel(PascalVOCDataset.METAINFO["palette"]).tolist())
    image.save(path)


def random_label(rng: np.random.RandomState, values, size=SIZE) -> np.ndarray:
    return rng.choice(np.array(values, np.uint8), (size[1], size[0]))


def _voc(root: Path, rng) -> Tree:
    parts = {"train": ("a", "b", "c"), "aug": ("d", "e"), "val": ("f", "g")}
    pairs: dict[str, list] = {}
    lists = root / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    for part in ("trainval", "test"):
        (lists / f"{part}.txt").write_text("2007_a\n")
    for part, names in parts.items():
        folder = "SegmentationClassAug" if part == "aug" else "SegmentationClass"
        lines = []
        for letter in names:
            name = f"2007_{letter}"
            image, mask = root / f"JPEGImages/{name}.jpg", root / folder / f"{name}.png"
            save_image(image, rng)
            save_mask(mask, random_label(rng, [*range(21), 255]), indexed=True)
            pairs.setdefault(part, []).append((image, mask))
            lines.append(name)
        (lists / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return Tree("voc", root, pairs)


# Layouts by folders: image, label map, the splits' folders, and the values of label maps.
_FOLDERS = {
    "ade20k": (
        "images/{folder}/ADE_{split}_{i:08d}.jpg",
        "annotations/{folder}/ADE_{split}_{i:08d}.png",
        {"train": "training", "val": "validation"},
        range(151),
    ),
    "cityscapes": (
        "leftImg8bit/{folder}/town{split}/town_{i:06d}_leftImg8bit.png",
        "gtFine/{folder}/town{split}/town_{i:06d}_gtFine_labelTrainIds.png",
        {"train": "train", "val": "val"},
        [*range(19), 255],
    ),
    "camvid": (
        "images/{folder}/{split}_{i:04d}.png",
        "annotations/{folder}/{split}_{i:04d}.png",
        {"train": "train", "val": "val", "test": "test"},
        [*range(11), 255],
    ),
}


def _in_folders(layout: str, root: Path, rng) -> Tree:
    image_name, mask_name, splits, values = _FOLDERS[layout]
    pairs: dict[str, list] = {split: [] for split in splits}
    for split, folder in splits.items():
        for i in range(3):
            name = dict(folder=folder, split=split, i=i)
            image, mask = root / image_name.format(**name), root / mask_name.format(**name)
            save_image(image, rng)
            save_mask(mask, random_label(rng, values))
            pairs[split].append((image, mask))
    return Tree(layout, root, pairs)
