"""trainaug of PASCAL VOC 2012: VOC's own training images and those that SBD adds to them.

Everingham et al., The PASCAL Visual Object Classes Challenge 2012; Hariharan et al., Semantic
contours from inverse detectors, ICCV 2011 (SBD). The union of VOC's train and of SBD, less VOC's
val, has 10,582 images.

The files and lists are those of mmsegmentation's converter but for one thing:
`SegmentationClassAug` holds all of trainaug, the 1,464 of VOC's train with VOC's own label maps
(finer than SBD's, with a void border), so that `trainaug.txt` is a split by itself.
"""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
from mmseg.datasets import PascalVOCDataset
from PIL import Image

from mmseg_ext.datasets.converters.conversion import (
    in_parallel,
    read_list,
    require_counts,
    verify,
    write_list,
    write_whole,
)
from mmseg_ext.datasets.labels import LabelRule
from mmseg_ext.errors import ConversionError

PUBLISHED = {"train": 1464, "val": 1449, "trainval": 2913, "trainaug": 10582, "aug": 9118}
CLASSES = 21
VOID_COLOUR = (224, 224, 192)


def convert_voc_aug(
    devkit: Path, sbd: Path, workers: int = 0, allow_partial: bool = False
) -> dict[str, int]:
    """Add `SegmentationClassAug`, `trainaug.txt` and `aug.txt` to `devkit`/VOC2012.

    The lists are written last, when every pair has been read.

    Returns:
        Number of images of each split.

    Raises:
        ConversionError: if files are missing, the numbers are not the published ones (unless
            `allow_partial`), SciPy is missing, or a pair is broken.
    """
    voc = devkit / "VOC2012"
    lists = voc / "ImageSets" / "Segmentation"
    annotations = _annotations(sbd)
    train, val, trainval = (
        read_list(lists / f"{name}.txt") for name in ("train", "val", "trainval")
    )
    from_sbd = read_list(annotations / "train.txt") | read_list(annotations / "val.txt")
    if allow_partial:
        images = {path.stem for path in (voc / "JPEGImages").glob("*.jpg")}
        from_sbd &= images & {path.stem for path in (annotations / "cls").glob("*.mat")}
        masks = {path.stem for path in (voc / "SegmentationClass").glob("*.png")}
        train, val, trainval = (names & images & masks for names in (train, val, trainval))
    splits = {
        "train": train,
        "val": val,
        "trainval": trainval,
        "trainaug": (train | from_sbd) - val,
        "aug": from_sbd - train - val,
    }
    counts = {name: len(names) for name, names in splits.items()}
    require_counts(counts, PUBLISHED, allow_partial)
    _require_files(voc / "JPEGImages", ".jpg", splits["trainaug"] | val)
    _require_files(annotations / "cls", ".mat", splits["aug"])

    target = voc / "SegmentationClassAug"
    for name in sorted(train):
        source = voc / "SegmentationClass" / f"{name}.png"
        write_whole(target / source.name, partial(shutil.copyfile, source))
    sources = [annotations / "cls" / f"{name}.mat" for name in sorted(splits["aug"])]
    missing = [path for path in sources if not (target / f"{path.stem}.png").exists()]
    in_parallel(partial(convert_mat, folder=target), missing, workers, "converting SBD")

    rule = LabelRule(CLASSES)
    for split, masks in (("trainaug", target), ("val", voc / "SegmentationClass")):
        names = sorted(splits[split])
        pairs = [(voc / "JPEGImages" / f"{n}.jpg", masks / f"{n}.png") for n in names]
        verify(split, pairs, rule, workers)
    for split in ("aug", "trainaug"):
        write_list(lists / f"{split}.txt", splits[split])
    return counts


def _annotations(sbd: Path) -> Path:
    for folder in (sbd / "dataset", sbd):
        if (folder / "cls").is_dir():
            return folder
    raise ConversionError(f"{sbd} has no folder dataset/cls: it is not SBD's benchmark_RELEASE")


def _require_files(folder: Path, suffix: str, names: set[str]) -> None:
    present = {path.stem for path in folder.glob(f"*{suffix}")}
    missing = sorted(names - present)
    if missing:
        shown = ", ".join(f"{name}{suffix}" for name in missing[:5])
        raise ConversionError(
            f"{folder}: {len(missing)} of {len(names)} files are missing: {shown}; "
            "--allow-partial takes a subset"
        )


def convert_mat(source: Path, folder: Path) -> None:
    """Write the class map of one of SBD's .mat files to `folder`, as an indexed PNG.

    Raises:
        ConversionError: if SciPy is missing, or the file is broken or holds no such map.
    """
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ConversionError("SBD's .mat files are read with SciPy: pip install scipy") from None
    try:
        content = loadmat(source, squeeze_me=True, struct_as_record=False)
        label = np.asarray(content["GTcls"].Segmentation)  # (H, W)
    except Exception as error:  # SciPy raises anything on a broken file
        raise ConversionError(f"{source}: no class map ({type(error).__name__})") from error
    if label.ndim != 2 or not label.size:
        raise ConversionError(f"{source}: shape {label.shape}, expected a map of classes")
    legal = np.isin(label, range(CLASSES))  # neither fractions nor NaN are
    if not legal.all():
        wrong = np.unique(label[~legal])[:3].tolist()
        raise ConversionError(f"{source}: values that are no class: {wrong}")
    image = Image.fromarray(label.astype(np.uint8))
    image.putpalette(_palette())
    write_whole(folder / f"{source.stem}.png", partial(image.save, format="PNG"))


def _palette() -> bytes:
    colours = np.zeros((256, 3), np.uint8)
    colours[:CLASSES] = PascalVOCDataset.METAINFO["palette"]
    colours[255] = VOID_COLOUR
    return colours.tobytes()
