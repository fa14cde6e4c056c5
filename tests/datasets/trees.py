"""Tiny datasets on disk in the layouts of the dataset bases, with a config that reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmseg.datasets import PascalVOCDataset
from PIL import Image

from tests.configs import CONFIGS

SIZE = (24, 18)  # width, height
CITYSCAPES = ("_leftImg8bit.png", "_gtFine_labelTrainIds.png")
# The dataset base, the endings of images and label maps, and the values.
BASES = {
    "voc": ("voc_published", ".jpg", ".png", [*range(21), 255]),
    "ade20k": ("ade20k", ".jpg", ".png", range(151)),
    "cityscapes": ("cityscapes_769x769", *CITYSCAPES, [*range(19), 255]),
    "camvid": ("camvid", ".png", ".png", range(12)),
}


@dataclass
class Tree:
    """A dataset; `pairs[split]` is a list of (image, label map). VOC has a split aug."""

    layout: str
    root: Path
    pairs: dict[str, list[tuple[Path, Path]]] = field(default_factory=dict)

    def image(self, split: str = "train", index: int = 0) -> Path:
        return self.pairs[split][index][0]

    def mask(self, split: str = "train", index: int = 0) -> Path:
        return self.pairs[split][index][1]

    def config(self) -> Config:
        """Return the dataset base of this layout, reading this tree."""
        cfg = Config.fromfile(CONFIGS / "_base_" / "datasets" / f"{BASES[self.layout][0]}.py")
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


def datasets(cfg: Config, splits: Sequence[str] = ("train", "val", "test")) -> Iterator[dict]:
    """Yield the dataset configs that name files, from the dataloaders of these splits."""
    for split in splits:
        dataset = cfg[f"{split}_dataloader"]["dataset"]
        yield from dataset.get("datasets", [dataset])


def make_tree(layout: str, root: Path) -> Tree:
    """Write a valid dataset of a few pairs to `root`/data."""
    tree = Tree(layout, root / "data")
    rng, (_, image_end, mask_end, values) = np.random.RandomState(0), BASES[layout]
    palette = PascalVOCDataset.METAINFO["palette"]
    splits = ("train", "aug", "val") if layout == "voc" else ("train", "val")
    for part, split in zip(datasets(tree.config(), ("train", "val")), splits, strict=True):
        names = [f"{split}{i}" for i in range(2 if split == "aug" else 3)]
        images, masks = (tree.root / part.data_prefix[k] for k in ("img_path", "seg_map_path"))
        tree.pairs[split] = [(images / (n + image_end), masks / (n + mask_end)) for n in names]
        for image, mask in tree.pairs[split]:
            save(image, random_image(rng))
            save(mask, random_label(rng, values), palette if layout == "voc" else None)
        if layout == "voc":
            lists = tree.root / "ImageSets/Segmentation"
            lists.mkdir(parents=True, exist_ok=True)
            for name, listed in ((split, names), ("trainval", ["train0"]), ("test", ["train0"])):
                (lists / f"{name}.txt").write_text("\n".join(listed) + "\n")
    return tree


NUCLEI = [f"{i:04x}" for i in range(30)]  # IDs of all splits
NUCLEI_SIZE = (20, 24)  # height, width


def masks_of(name: str) -> list[np.ndarray]:
    """Return one to three nuclei of an ID: two squares that touch, and one far from them."""
    masks = [np.zeros(NUCLEI_SIZE, np.uint8) for _ in range(3)]
    masks[0][2:10, 2:8] = 255
    masks[1][2:10, 8:14] = 255
    masks[2][14:18, 18:22] = 255
    return masks[: 1 + int(name, 16) % 3]


def write_nuclei(root: Path) -> None:
    """Write the published folder of `NucleiDataset`; the number of an ID is its image's value."""
    for name in NUCLEI:
        folder = root / "stage1_train" / name
        rgba = np.full((*NUCLEI_SIZE, 4), int(name, 16), np.uint8)
        save(folder / f"images/{name}.png", rgba)
        for i, mask in enumerate(masks_of(name)):
            save(folder / f"masks/{i}.png", mask)


def save(path: Path, pixels: np.ndarray, palette=None, orientation=None, **options) -> None:
    """Write an image (H, W, 3), or a label map (H, W) with the colors of `palette`."""
    if orientation is not None:
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    if palette is not None:
        image.putpalette(np.ravel(palette).tolist())
    image.save(path, **options)


def random_image(rng: np.random.RandomState, size: tuple[int, int] = SIZE) -> np.ndarray:
    return rng.randint(0, 256, (*size[::-1], 3), dtype=np.uint8)


def random_label(rng: np.random.RandomState, values) -> np.ndarray:
    return rng.choice(np.array(values, np.uint8), SIZE[::-1])
