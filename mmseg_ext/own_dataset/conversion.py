"""One pair: its image and annotation are read once, and its files in the project written.

Between the two all pairs have been read, because the classes and the splits depend on all. The
annotation waits as an index map, and the class of each index makes it a label map.
"""

import io
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.errors import UnreadableFileError
from mmseg_ext.images.files import read, read_bytes
from mmseg_ext.images.values import IMAGE_SUFFIXES, any_size, declared
from mmseg_ext.own_dataset.annotations.annotation import BACKGROUND
from mmseg_ext.own_dataset.annotations.index_map import IndexMap, StoredMap
from mmseg_ext.own_dataset.annotations.reader import Reader
from mmseg_ext.own_dataset.classes import IGNORED
from mmseg_ext.own_dataset.copies import small_version
from mmseg_ext.own_dataset.pairs import Pair

UPRIGHT = 1  # EXIF's orientation


@dataclass
class ReadPair:
    """A pair whose files were read."""

    pair: Pair
    size: tuple[int, int]  # of the image, upright: height and width
    orientation: int  # of the image, EXIF's, 1 to 8
    small: np.ndarray  # small version of the image
    colors: int  # different values in its first band
    annotation: StoredMap
    is_turned: bool = False  # whether the annotation is turned as the photo's file
    # The class of each index of the annotation, (N,) uint8, when the classes are chosen.
    classes: np.ndarray = field(init=False)

    def count_classes(self) -> np.ndarray:
        """Return the pixels of each class and of ignored values, (256,)."""
        counts = np.zeros(IGNORED + 1, int)
        np.add.at(counts, self.classes, self.annotation.counts)
        return counts


def read_pair(pair: Pair, reader: Reader, file: Path) -> ReadPair:
    """Read the image and the annotation of a pair; the index map is written to `file`.

    Raises:
        UnreadableFileError: if the image cannot be read.
        LabelError: if the annotation cannot be read or has another size.
    """
    path = str(pair.image)
    pixels = read(read_bytes(path), path)
    orientation = pixels.orientation
    height, width, channels = pixels.upright().values.shape
    is_8_bits = pixels.values.dtype in (bool, np.uint8)
    is_photo = is_8_bits and channels - len(pixels.alpha) in (1, 3)
    if orientation != UPRIGHT and not is_photo:  # Pillow cannot turn it
        raise UnreadableFileError(
            f"{path}: has an orientation tag ({orientation}); save it upright"
        )
    small = small_version(pixels.values, pixels.missing)
    step = 1 + max(height, width) // 500  # all values of large images would take long
    colors = len(np.unique(pixels.values[::step, ::step, 0]))
    del pixels  # a large image does not stay in memory while its mask is read
    sizes = [(height, width)]
    if orientation >= 5:  # the sides are exchanged; a mask can have either size
        sizes.append((width, height))
    if pair.annotation.is_missing:
        note = ("a photo without an annotation is all background",)
        found = IndexMap([BACKGROUND], np.zeros(sizes[0], np.uint8), note)
    else:
        found = reader.read(pair.annotation, sizes)
    stored = found.store(pair.annotation, file)
    return ReadPair(pair, sizes[0], orientation, small, colors, stored)


def find_turned(read: Sequence[ReadPair]) -> list[str]:
    """Set `is_turned` of the pairs, and return a note on those whose sizes do not show it.

    The size of an annotation shows it for a photo on its side. Other rotated photos, such as those
    upside down, follow these if they agree.
    """
    on_side, hidden = [], []
    for part in read:
        stored, size = part.annotation.shape, part.size
        part.is_turned = stored != size
        if part.orientation == UPRIGHT or part.pair.annotation.is_missing:
            continue
        if part.orientation >= 5 and size[0] != size[1]:
            on_side.append(part.is_turned)
        else:
            hidden.append(part)
    if not hidden or (on_side and not any(on_side)):
        return []
    if on_side and all(on_side):
        for part in hidden:
            part.is_turned = True
        return []
    return [
        f"{len(hidden)} photos have an EXIF orientation that the sizes of their annotations do not "
        f"show, such as {hidden[0].pair.image}; the annotations are not turned; if they do not fit "
        "in preview.png, remove the orientation, such as with exiftool -Orientation= FILE"
    ]


def image_file(data: Path, pair: Pair) -> Path:
    """Return where the image of a pair is in a project's data."""
    return data / f"images/{pair.split}/{pair.name}{pair.image.suffix}"


def label_file(data: Path, split: str, name: str) -> Path:
    """Return where the label map of a pair is in a project's data."""
    return data / f"annotations/{split}/{name}.png"


def earlier_images(data: Path) -> dict[Path, list[Path]]:
    """Return the images in a project's data by their paths without suffixes."""
    found = defaultdict(list)
    for path in data.glob("images/**/*"):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            found[path.with_suffix("")].append(path)
    return found


def write_pair(part: ReadPair, data: Path, earlier: dict[Path, list[Path]]) -> None:
    """Write the image and the label map of a pair to its split.

    Images of its name are removed, also from `earlier`; they can be of another photo.
    """
    target = image_file(data, part.pair)
    for path in earlier.pop(target.with_suffix(""), ()):
        path.unlink()
    _write_image(part, target)
    label = part.classes[part.annotation.load()]  # (H, W)
    if part.is_turned:
        label = declared(label, orientation=part.orientation).upright().values[..., 0]
    with atomic_write(label_file(data, str(part.pair.split), part.pair.name)) as file:
        Image.fromarray(label).save(file, "PNG")


def _write_image(part: ReadPair, target: Path) -> None:
    """Link to the image of a pair; write it upright if it is not."""
    source = part.pair.image
    if part.orientation != UPRIGHT:  # `image_demo` shows photos to the trained model upright
        with any_size():  # not by its path, with which Pillow mixes the rows of some TIFFs
            image = Image.open(io.BytesIO(source.read_bytes()))
        with image, atomic_write(target) as file:
            # The best quality: `image_demo` reads the original.
            options: Any = {"quality": 100, "subsampling": 0}
            if image.format == "WEBP":
                options = {"lossless": True}
            ImageOps.exif_transpose(image).save(file, image.format, **options)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.symlink_to(source.resolve())
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
