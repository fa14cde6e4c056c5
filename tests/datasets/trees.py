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
    """One dataset: `pairs[split]` holds (image, label map)."""

    layout: str
    root: Path
    pairs: dict[str, list[tuple[Path, Path]]]

    def image(self, split: str = "train", index: int = 0) -> Path:
        return self.pairs[split][index][0]

    def mask(self, split: str = "train", index: int = 0) -> Path:
        return self.pairs[split][index][1]

    def config(self) -> Config:
        """The dataset base of this layout, reading this tree."""
        cfg = Config.fromfile(CONFIGS / "_base_" / "datasets" / f"{BASES[self.layout]}.py")
        set_data_root(cfg, self.root)
        return cfg

    def write_config(self, text: str = "") -> Path:
        """That config as a file, with lines of its own appended."""
        path = self.root.parent / f"{self.layout}.py"
        settings = self.config().to_dict().items()
        path.write_text("".join(f"{key} = {value!r}\n" for key, value in settings) + text)
        return path


def set_data_root(cfg: Config, root: Path) -> None:
    """Point every dataset of the config's dataloaders at `root`."""
    for dataset in datasets(cfg):
        dataset["data_root"] = str(root)


def datasets(cfg: Config) -> Iterator[dict]:
    """The dataset configs that name files, out of every dataloader."""
    pending = [cfg[f"{split}_dataloader"]["dataset"] for split in ("train", "val", "test")]
    while pending:
        dataset = pending.pop()
        pending += dataset.get("datasets", [])
        if "datasets" not in dataset:
            yield dataset


def make_tree(layout: str, root: Path) -> Tree:
    """A valid dataset of a few pairs below `root`/data."""
    rng = np.random.RandomState(0)
    return _MAKERS[layout](root / "data", rng)


def save_image(path: Path, rng: np.random.RandomState, size=SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.randint(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def save_mask(path: Path, label: np.ndarray, palette: np.ndarray | None = None) -> None:
    """Write `label` (H, W); with a palette (256, 3) as an indexed image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(label)
    if palette is not None:
        image.putpalette(palette.astype(np.uint8).tobytes())
    image.save(path)


def random_label(rng: np.random.RandomState, values, size=SIZE) -> np.ndarray:
    return rng.choice(np.array(values, np.uint8), (size[1], size[0]))


def voc_palette() -> np.ndarray:
    palette = np.zeros((256, 3), np.uint8)
    palette[:21] = PascalVOCDataset.METAINFO["palette"]
    palette[255] = (224, 224, 192)
    return palette


def _voc(root: Path, rng) -> Tree:
    parts = {"train": ("a", "b", "c"), "aug": ("d", "e"), "val": ("f", "g")}
    pairs: dict[str, list] = {}
    for part, names in parts.items():
        folder = "SegmentationClassAug" if part == "aug" else "SegmentationClass"
        lines = []
        for letter in names:
            name = f"2007_{letter}"
            image, mask = root / f"JPEGImages/{name}.jpg", root / folder / f"{name}.png"
            save_image(image, rng)
            save_mask(mask, random_label(rng, [*range(21), 255]), voc_palette())
            pairs.setdefault(part, []).append((image, mask))
            lines.append(name)
        listed = root / "ImageSets/Segmentation" / f"{part}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("\n".join(lines) + "\n")
    return Tree("voc", root, pairs)


def _in_folders(layout, root, rng, image_name, mask_name, splits, values) -> Tree:
    pairs: dict[str, list] = {}
    for split, folder in splits.items():
        for i in range(3):
            image = root / image_name.format(folder=folder, split=split, i=i)
            mask = root / mask_name.format(folder=folder, split=split, i=i)
            save_image(image, rng)
            save_mask(mask, random_label(rng, values))
            pairs.setdefault(split, []).append((image, mask))
    return Tree(layout, root, pairs)


def _ade20k(root: Path, rng) -> Tree:
    return _in_folders(
        "ade20k",
        root,
        rng,
        "images/{folder}/ADE_{split}_{i:08d}.jpg",
        "annotations/{folder}/ADE_{split}_{i:08d}.png",
        {"train": "training", "val": "validation"},
        range(151),
    )


def _cityscapes(root: Path, rng) -> Tree:
    return _in_folders(
        "cityscapes",
        root,
        rng,
        "leftImg8bit/{folder}/town{split}/town_{i:06d}_leftImg8bit.png",
        "gtFine/{folder}/town{split}/town_{i:06d}_gtFine_labelTrainIds.png",
        {"train": "train", "val": "val"},
        [*range(19), 255],
    )


def _camvid(root: Path, rng) -> Tree:
    return _in_folders(
        "camvid",
        root,
        rng,
        "images/{folder}/{split}_{i:04d}.png",
        "annotations/{folder}/{split}_{i:04d}.png",
        {"train": "train", "val": "val", "test": "test"},
        [*range(11), 255],
    )


_MAKERS = {"voc": _voc, "ade20k": _ade20k, "cityscapes": _cityscapes, "camvid": _camvid}
