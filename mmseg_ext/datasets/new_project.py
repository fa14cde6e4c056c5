"""A folder for training on your own images: `data/`, `config.py` and `default_runtime.py`.

`make_project` pairs images with annotations, writes label maps, and writes a config that fits the
data. It never changes the sources. A second run adds the pairs that are missing.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import numpy as np
from PIL import Image

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.datasets.annotation_readers import (
    BACKGROUND,
    Annotation,
    Key,
    Reader,
    find_files,
    key_of,
    runs,
)
from mmseg_ext.datasets.dataset_report import PairCheck, Summary, progress
from mmseg_ext.datasets.images import decode, orientation, read_bytes
from mmseg_ext.environment import configs_folder
from mmseg_ext.errors import LabelError, UnreadableFileError

IGNORED = 255
LONG_SIDE = 512  # of the images that the network sees
CROP = 320
RARE = 0.02  # share of the pixels below which the classes get weights
_IMAGE = re.compile(r"[_-](image|img|rgb)$", re.I)
_MASK = re.compile(r"[_-](masks?|labels?|labelids|seg|segmentation|gt)$", re.I)
# The operation that turns an image of each EXIF orientation upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass
class Project:
    """The result of `make_project`.

    `labels` maps the text of each annotated value to its class, or to 255. `left_out` has a line
    for each file that is not in a pair. `wrote_config` is False if the config existed.
    """

    config: Path
    classes: list[str]
    labels: dict[str, int]
    summaries: list[Summary]
    left_out: list[str]
    wrote_config: bool


@dataclass
class _Pair:
    image: Path
    annotation: Annotation
    image_file: Path  # in the project
    label_file: Path

    def is_complete(self) -> bool:
        """Return whether both files exist, and the label map is not older than its source."""
        if not (self.image_file.is_file() and self.label_file.is_file()):
            return False
        return self.label_file.stat().st_mtime >= self.annotation.path.stat().st_mtime


def make_project(
    folder: Path,
    images: Path,
    reader: Reader,
    classes: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    val_share: float = 0.2,
    load_from: str | None = None,
    width: int = 32,
) -> Project:
    """Write the data and the config of a project to `folder`.

    Args:
        folder: The project; created if it is missing.
        images: Folder of the images, with subfolders. Folders `train` and `val` are the splits;
            without them a hash of the name decides.
        reader: The annotations.
        classes: Names in the order of the values. COCO and labelme have names of their own.
        ignored: Values, colors (#rrggbb) or names whose pixels do not count.
        val_share: Share of the images for validation, if no folders name the splits.
        load_from: Weights that training starts from; 'imagenet' for mmsegmentation's ResNet-18.
        width: Base width of the ResNet-18.

    Raises:
        ValueError: if no pair is found, or the values do not fit the classes.
    """
    data = folder / "data"
    pairs, left_out = _find_pairs(images, reader, data, val_share)
    state_file = data / "classes.json"
    state = json.loads(state_file.read_text()) if state_file.is_file() else None
    pending = [pair for pairs_ in pairs.values() for pair in pairs_ if not pair.is_complete()]
    if state:
        reader.colored = state["colored"]
    reader.prepare(progress((pair.annotation for pair in pending), "reading", len(pending)))
    if state:
        _require_same_classes(state, reader, classes, ignored, state_file)
    else:
        names, labels = assign_classes(reader.labels, classes, ignored)
        state = dict(classes=names, labels=labels, colored=reader.colored)
        write_text(json.dumps(state, indent=1), state_file)
    names, labels = state["classes"], state["labels"]
    summaries = []
    for split, members in pairs.items():
        summary = Summary(split, tuple(names))
        for pair in progress(members, f"writing {split}", len(members)):
            try:
                label = _write_pair(pair, reader, labels)
            except (LabelError, UnreadableFileError) as error:
                left_out.append(str(error))
                continue
            counts = np.bincount(label.ravel(), minlength=len(names))
            summary.add(str(pair.image), PairCheck(size=label.shape[::-1], counts=counts))
        summaries.append(summary)
    for summary in summaries:
        if not summary.pairs:
            if not any(s.pairs for s in summaries):
                state_file.unlink()
            raise ValueError(f"{summary.split}: no pair is usable; {(left_out or [images])[-1]}")
    if left_out:
        write_text("".join(f"{line}\n" for line in left_out), folder / "left_out.txt")
    config = folder / "config.py"
    wrote_config = not config.exists()
    if wrote_config:
        runtime = configs_folder() / "_base_/default_runtime.py"
        write_text(runtime.read_text(encoding="utf-8"), folder / runtime.name)
        write_text(config_text(*summaries, load_from, width), config)
    return Project(config, names, labels, summaries, left_out, wrote_config)


def assign_classes(
    labels: Mapping[int, str], names: Sequence[str] | None = None, ignored: Sequence[str] = ()
) -> tuple[list[str], dict[str, int]]:
    """Return the classes, and the class of each label; 255 for ignored labels.

    The value 255 of masks is ignored if the other values are 0, 1, 2, ..., unless there are as many
    names as values. In masks with two values it is a class.

    Raises:
        ValueError: if the labels do not fit the names, or there are not 2 to 255 classes.
    """
    if unknown := set(ignored) - set(labels.values()):
        raise ValueError(f"--ignore {min(unknown)}: no such value; {_listed(labels.values())}")
    left = {value: label for value, label in labels.items() if label not in ignored}
    named = BACKGROUND in labels.values()  # COCO and labelme
    if named and names and set(names) & set(left.values()):
        names = list(names) if BACKGROUND in {*names, *ignored} else [BACKGROUND, *names]
        if missing := set(left.values()) - set(names):
            raise ValueError(f"--classes lacks {min(missing)!r}; name it, or add it to --ignore")
        order = {label: names.index(label) for label in left.values()}
    else:
        if left.get(IGNORED) == str(IGNORED) and len(left) > 2 and len(names or ()) != len(left):
            others = sorted(left.keys() - {IGNORED})
            if others[-1] < (len(names) if names else len(others)):
                del left[IGNORED]
        order = {label: i for i, label in enumerate(left.values())}
        if names and not named and max(left, default=0) < len(names):
            order = {label: value for value, label in left.items()}
        elif names and len(names) != len(left):
            raise ValueError(
                f"--classes names {len(names)} classes, but {_listed(left.values())}; "
                "give one name per value, or --ignore values"
            )
        own = list(left.values()) if named else [f"class_{i}" for i in range(len(left))]
        names = list(names or own)
    if not 2 <= len(names) <= IGNORED:
        raise ValueError(
            f"{len(names)} classes; 2 to {IGNORED} are possible: {_listed(left.values())}"
        )
    return names, {label: order.get(label, IGNORED) for label in labels.values()}


def _listed(labels: Iterable[str]) -> str:
    shown = list(labels)
    return f"there are {len(shown)} values: {', '.join(shown[:8])}{', ...' * (len(shown) > 8)}"


def _require_same_classes(state: dict, reader: Reader, names, ignored, path: Path) -> None:
    problem = ""
    if names and list(names) != state["classes"]:
        problem = f"has the classes {', '.join(state['classes'])}"
    if other := {value for value in ignored if state["labels"].get(value) != IGNORED}:
        problem = f"does not ignore {min(other)}"
    if unknown := set(reader.labels.values()) - state["labels"].keys():
        problem = f"lacks the value {min(unknown)} of a new annotation"
    if problem:
        raise ValueError(f"{path}: {problem}; start a new project to change the classes")


def _find_pairs(
    images: Path, reader: Reader, data: Path, val_share: float
) -> tuple[dict[str, list[_Pair]], list[str]]:
    """Return the pairs of each split, and a line for each file that is in none."""
    found, annotations = _separate(images, reader, data)
    index: dict[Key, list[Key]] = {}
    for split, name in annotations:
        for variant in _variants(name, _MASK):
            index.setdefault((split, variant), []).append((split, name))
    left_out, partner = [], {}
    for path in found:
        split, name = key_of(path.relative_to(images))
        splits = (split, None) if split else (None, "train", "val", "test")
        keys = ((s, variant) for variant in _variants(name, _IMAGE) for s in splits)
        matches = next((index[key] for key in keys if key in index), [])
        matches = [match for match in matches if match[1] == name] or matches
        if len(matches) == 1:
            partner[path] = (split or matches[0][0], name), matches[0]
        else:
            left_out.append(f"{path}: {'several annotations fit' if matches else 'no annotation'}")
    if not partner:
        image, annotation = (str(next(iter(x), "none")) for x in (found, reader.files.values()))
        raise ValueError(
            f"{images}: none of {len(found)} images has one of {len(annotations)} annotations of "
            f"the same name; the first are {image} and {annotation}"
        )
    matched = {match for _, match in partner.values()}
    left_out += [f"{a.path}: no image {a.name}" for k, a in annotations.items() if k not in matched]
    keys = [key for key, _ in partner.values()]
    given = {"train", "val"} <= {split for split, _ in keys}
    hashed = {} if given else _hash_splits([name for _, name in keys], data, val_share)
    pairs: dict[str, dict[str, _Pair]] = {"train": {}, "val": {}}
    for path, ((split, name), match) in partner.items():
        split = split if given else hashed[name]
        if split not in pairs:
            left_out.append(f"{path}: is in neither train nor val")
        elif name in pairs[split]:
            left_out.append(f"{path}: {pairs[split][name].image} has the same name")
        else:
            image_file = data / "images" / split / f"{name}{path.suffix}"
            label_file = data / "annotations" / split / f"{name}.png"
            pairs[split][name] = _Pair(path, annotations[match], image_file, label_file)
    return {split: list(members.values()) for split, members in pairs.items()}, left_out


def _separate(images: Path, reader: Reader, data: Path) -> tuple[list[Path], dict]:
    """Return the images, and the annotations by key; masks may be in or below their folder."""
    found = [path for path in find_files(images) if data.resolve() not in path.resolve().parents]
    masks = {annotation.path for annotation in reader.files.values()} & set(found)
    if masks == set(found):  # one folder: the masks have an ending
        masks = {path for path in found if _MASK.search(path.stem)}
    found = [path for path in found if path not in masks]
    return found, {key: a for key, a in reader.files.items() if a.path not in found}


def _variants(name: str, ending: re.Pattern) -> list[str]:
    base = name.rpartition("/")[2]
    return list(dict.fromkeys([name, ending.sub("", name), base, ending.sub("", base)]))


def _hash_splits(names: Sequence[str], data: Path, val_share: float) -> dict[str, str]:
    """Assign each name to a split by its hash, so the split stays when images are added."""
    digests = {name: hashlib.sha256(name.encode()).digest() for name in names}
    limit = int(val_share * 2**32).to_bytes(4, "big")
    splits = {name: "val" if digests[name] < limit else "train" for name in names}
    if len(splits) > 1 and len(set(splits.values())) == 1:  # few images
        splits[min(splits, key=digests.get)] = "val"
        splits[max(splits, key=digests.get)] = "train"
    for name in names:  # an earlier run may have had few images
        for split in ("train", "val"):
            if (data / "annotations" / split / f"{name}.png").is_file():
                splits[name] = split
    return splits


def _write_pair(pair: _Pair, reader: Reader, labels: Mapping[str, int]) -> np.ndarray:
    """Write the image and the label map of a pair, unless both exist; return the label map (H, W).

    Raises:
        LabelError: if the annotation cannot be read or has another size than the image.
        UnreadableFileError: if the image does not decode.
    """
    if pair.is_complete():
        return np.asarray(Image.open(pair.label_file))
    path = str(pair.image)
    content = read_bytes(path)
    stored = decode(content, path, "color_ignore_orientation", "cv2").shape[:2]  # (H, W)
    values = reader.read(pair.annotation)
    found, lengths = runs(values)
    classes = {value: labels[label] for value, label in reader.labels.items()}
    label = np.array([classes[value] for value in found.tolist()], np.uint8)
    label = np.repeat(label, lengths).reshape(values.shape)
    tag = orientation(content)
    upright = stored[::-1] if tag >= 5 else stored
    if label.shape not in (stored, upright):
        size = f"{label.shape[1]}x{label.shape[0]}"
        raise LabelError(f"{path}: is {stored[1]}x{stored[0]}, but its annotation is {size}")
    # Photos are written upright, as `image_demo` shows them to the trained model.
    if tag in _UPRIGHT:
        annotated_upright = reader.upright if stored == upright else label.shape == upright
        if not annotated_upright:
            label = np.asarray(Image.fromarray(label).transpose(_UPRIGHT[tag]))
        with Image.open(pair.image) as image, atomic_write(pair.image_file) as part:
            image.convert("RGB").transpose(_UPRIGHT[tag]).save(part, image.format, quality=95)
    else:
        _link(pair.image, pair.image_file)
    with atomic_write(pair.label_file) as part:  # last: it marks the pair as complete
        Image.fromarray(label).save(part, "PNG")
    return label


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.symlink_to(source.resolve())
    except OSError:  # a file system without links
        with atomic_write(target) as part:
            shutil.copyfile(source, part)


def config_text(train: Summary, val: Summary, load_from: str | None, width: int) -> str:
    """Return a config that fits the sizes, the classes and the number of the images."""
    sizes = list((train.sizes + val.sizes).elements())  # (W, H)
    long, short = np.median(np.sort(sizes)[:, ::-1], axis=0)
    side = min(LONG_SIDE, max(32, int(long) // 32 * 32))
    share = train.pixels / train.pixels.sum()
    weights = None
    if share[share > 0].min() < RARE:
        # The same rule as for CamVid; absent classes and 20 times the mean are the limits.
        raw = np.where(share > 0, np.maximum(share, 1e-9) ** -0.75, 0)
        weights = [float(f"{min(weight, 20):.3g}") for weight in raw / (raw * share).sum()]
    iterations = int(np.clip(15 * train.pairs // 100 * 100, 800, 20000))
    imagenet = dict(type="Pretrained", checkpoint="open-mmlab://resnet18_v1c")
    text = (Path(__file__).parent / "project_config.txt").read_text(encoding="utf-8")
    return Template(text).substitute(
        images=train.pairs + val.pairs,
        train=train.pairs,
        val=val.pairs,
        classes=json.dumps(train.classes, ensure_ascii=False),
        num_classes=len(train.classes),
        side=side,
        crop=min(CROP, max(32, int(side * short / long) // 32 * 32)),
        width=width,
        widths=[width * 2**stage for stage in range(4)],
        init=imagenet if load_from == "imagenet" else None,
        load_from=json.dumps(load_from) if load_from not in (None, "imagenet") else None,
        weights=weights,
        rate=5e-4 if load_from else 2e-3,
        iterations=iterations,
        warmup=iterations // 20,
        interval=iterations // 8,
    )
