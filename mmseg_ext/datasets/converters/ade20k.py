"""ADE20K of the scene parsing challenge 2016 (150 classes): unpacked, placed and verified.

Zhou et al., Scene parsing through ADE20K dataset, CVPR 2017. The label maps are used as they are;
what goes wrong is the archive, since the full ADE20K release, with thousands of classes in colour
masks, has the better known name.
"""

import os
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from mmseg_ext.datasets.converters.conversion import (
    in_parallel,
    require_counts,
    verify,
    write_whole,
)
from mmseg_ext.datasets.labels import LabelRule
from mmseg_ext.errors import ConversionError

NAME = "ADEChallengeData2016"
PUBLISHED = {"training": 20210, "validation": 2000}
CLASSES = 150
# Over what the archive holds: 44,000 files, 1 GB in all, none above 5 MB.
_MOST_FILES, _MOST_BYTES, _MOST_BYTES_OF_A_FILE = 200_000, 20 * 2**30, 2**28

# What zipfile raises on a member that is damaged, packed in a way unknown to it, or encrypted.
_DAMAGE = (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError)


def convert_ade20k(
    source: Path, destination: Path, workers: int = 0, allow_partial: bool = False
) -> dict[str, int]:
    """Make `destination` the scene parsing data of `source`, its zip archive or its folder.

    An archive is unpacked; to a folder that lies elsewhere `destination` becomes a link.

    Returns:
        Number of images of each split.

    Raises:
        ConversionError: if `source` is the full release or something else, the numbers are not
            the published ones (unless `allow_partial`), or a pair is broken.
    """
    if source.is_file():
        folder = _unpack(source, destination, workers)
    else:
        folder = _find_folder(source)
    pairs = {split: _pairs(folder, split) for split in PUBLISHED}
    counts = {split: len(found) for split, found in pairs.items()}
    require_counts(counts, PUBLISHED, allow_partial)
    for split, found in pairs.items():
        verify(split, found, LabelRule(CLASSES, reduce_zero_label=True), workers)
    _link(folder, destination)
    return counts


def _find_folder(source: Path) -> Path:
    for folder in (source / NAME, source):
        if (folder / "images" / "training").is_dir() and (folder / "annotations").is_dir():
            _refuse_full_release(str(source), _names_in(folder))
            return folder
    if not source.exists():
        raise ConversionError(f"{source} is not there")
    _refuse_full_release(str(source), _names_in(source))
    raise ConversionError(
        f"{source} is not {NAME}: expected the folders images/training and annotations/training"
    )


def _names_in(folder: Path, levels: int = 4, limit: int = 2000) -> list[str]:
    """Some of the paths below `folder`, at most `levels` deep, each with the folder's name."""
    names: list[str] = []
    for where, folders, files in os.walk(folder):
        relative = Path(where).relative_to(folder)
        names += [str(folder.name / relative / name) for name in (*folders, *files)[:200]]
        if len(relative.parts) >= levels:
            folders.clear()
        del folders[3:]
        if len(names) > limit:
            break
    return names


def _refuse_full_release(source: str, names: Sequence[str]) -> None:
    for name in names:
        parts = PurePosixPath(name).parts
        ending = parts[-1] if parts else ""
        if (
            any(part.startswith("ADE20K_20") for part in parts)
            or ending in ("index_ade20k.mat", "index_ade20k.pkl")
            or ending.endswith("_seg.png")
        ):
            raise ConversionError(
                f"{source} is the full ADE20K release (found {name}), whose colour masks name "
                "thousands of classes and parts. The configs need the scene parsing data of 150 "
                f"classes, {NAME}.zip: "
                "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip"
            )


def _unpack(archive: Path, destination: Path, workers: int) -> Path:
    if destination.is_symlink():
        raise ConversionError(f"{destination} is a link: unpack to another place or remove it")
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [info for info in opened.infolist() if not info.is_dir()]
    except zipfile.BadZipFile as error:
        raise ConversionError(f"{archive}: {error}; download it again") from error
    names = [info.filename for info in members]
    _refuse_full_release(str(archive), names)
    sizes = [info.file_size for info in members]
    if (
        len(sizes) > _MOST_FILES
        or sum(sizes) > _MOST_BYTES
        or max([0, *sizes]) > _MOST_BYTES_OF_A_FILE
    ):
        raise ConversionError(
            f"{archive} unpacks to {len(sizes):,} files, {sum(sizes) / 2**30:,.1f} GiB: it is not "
            f"{NAME}.zip"
        )
    wanted = [name for name in names if PurePosixPath(name).parts[:1] == (NAME,)]
    if not wanted or any(".." in PurePosixPath(name).parts for name in wanted):
        raise ConversionError(f"{archive} has no folder {NAME}")
    targets = {name: destination.joinpath(*PurePosixPath(name).parts[1:]) for name in wanted}
    missing = [(name, path) for name, path in targets.items() if not path.exists()]
    chunks = [missing[i : i + 256] for i in range(0, len(missing), 256)]
    in_parallel(partial(_unpack_files, archive), chunks, workers, "unpacking", chunk=1)
    return destination


def _unpack_files(archive: Path, files: Sequence[tuple[str, Path]]) -> None:
    def unpack(name: str, target: Path) -> None:
        with opened.open(name) as packed, target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)

    with zipfile.ZipFile(archive) as opened:
        for name, path in files:
            try:
                write_whole(path, partial(unpack, name))
            except _DAMAGE as error:
                raise ConversionError(f"{archive}: {name}: {error}; download it again") from error


def _pairs(folder: Path, split: str) -> list[tuple[Path, Path]]:
    images = sorted((folder / "images" / split).glob("*.jpg"))
    return [(i, folder / "annotations" / split / f"{i.stem}.png") for i in images]


def _link(folder: Path, destination: Path) -> None:
    if destination.exists() and destination.resolve() == folder.resolve():
        return
    if destination.exists() or destination.is_symlink():
        raise ConversionError(f"{destination} is there already and is not {folder}: remove it")
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.symlink_to(folder.resolve(), target_is_directory=True)
