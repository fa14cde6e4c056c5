"""A folder for training on your own images: `data/`, `config.py` and `default_runtime.py`.

`make_project` pairs images with annotations, writes label maps, and writes a config that fits the
data. It never changes the sources. A second run adds the pairs that are missing.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from mmseg_ext.atomic_write import atomic_write, write_text
from mmseg_ext.datasets.annotation_readers import BACKGROUND, Annotation, Key, Masks, keyed_files
from mmseg_ext.datasets.dataset_report import PairCheck, Summary, progress
from mmseg_ext.datasets.images import EXIF_ORIENTATION, decode, orientation, read_bytes
from mmseg_ext.errors import LabelError, UnreadableFileError
from mmseg_ext.paths import configs_folder

IGNORED = 255
LONG_SIDE, CROP = 512, 320  # of the images that the network sees, at most
RARE = 0.02  # share of the pixels; a rarer class brings class weights
_IMAGENET = 'dict(type="Pretrained", checkpoint="open-mmlab://resnet18_v1c")'
_IMAGE = re.compile(r"[_-](image|img|rgb)$", re.I)
_MASK = re.compile(r"[_-](masks?|labels?|labelids|seg|segmentation|gt)$", re.I)


class Project(NamedTuple):
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


class _Pair(NamedTuple):
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
    reader: Masks,
    classes: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    val_share: float = 0.2,
    load_from: str | None = None,
    width: int = 32,
) -> Project:
    """Write the data and the config of a project to `folder`.

    `images` is searched with its subfolders; if these are `train` and `val`, they are the splits.
    `ignored` has values, colors (#rrggbb) or names. `load_from` is the file of the weights that
    training starts from, or 'imagenet' for mmsegmentation's ResNet-18. `width` is the base width.

    Raises:
        ValueError: if no pair is found, or the values do not fit the classes.
    """
    data, state_file = folder / "data", folder / "data/classes.json"
    pairs, left_out = _find_pairs(images, reader, data, val_share)
    pending = [p.annotation for split in pairs.values() for p in split if not p.is_complete()]
    state = json.loads(state_file.read_text()) if state_file.is_file() else None
    reader.colored = bool(state and state["colored"])
    reader.prepare(progress(pending, "reading", len(pending)))
    if state:
        same = list(classes or state["classes"]) == state["classes"]
        unknown = set(reader.labels.values()) - state["labels"].keys()
        unknown |= {value for value in ignored if state["labels"].get(value) != IGNORED}
        if unknown or not same:
            raise ValueError(
                f"{state_file}: has the classes {state['classes']} of the values {state['labels']}"
                f", not {', '.join(sorted(unknown) or classes)}; start a new project to change them"
            )
    else:
        names, labels = assign_classes(reader.labels, classes, ignored)
        state = dict(classes=names, labels=labels, colored=reader.colored)
        write_text(json.dumps(state, indent=1), state_file)
    names, labels = state["classes"], state["labels"]
    summaries = [Summary(split, tuple(names)) for split in pairs]
    for summary, members in zip(summaries, pairs.values(), strict=True):
        for pair in progress(members, f"writing {summary.split}", len(members)):
            try:
                label = _write_pair(pair, reader, labels)
            except (LabelError, UnreadableFileError) as error:
                left_out.append(str(error))
                continue
            counts = np.bincount(label.ravel(), minlength=len(names))
            summary.add(str(pair.image), PairCheck(size=label.shape[::-1], counts=counts))
    if empty := [summary.split for summary in summaries if not summary.pairs]:
        if len(empty) == len(summaries):
            state_file.unlink()  # nothing has been written with these classes
        raise ValueError(f"{empty[0]}: no pair is usable; {(left_out or [images])[-1]}")
    if left_out:
        write_text("".join(f"{line}\n" for line in left_out), folder / "left_out.txt")
    config = folder / "config.py"
    if wrote_config := not config.exists():
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
    texts = ", ".join(list(labels.values())[:8]) + ", ..." * (len(labels) > 8)
    there_are = f"there are {len(labels)} values: {texts}"
    if unknown := set(ignored) - set(labels.values()):
        raise ValueError(f"--ignore {min(unknown)}: no annotation has this value; {there_are}")
    left = {value: label for value, label in labels.items() if label not in ignored}
    named = BACKGROUND in labels.values()  # COCO and labelme
    if not named and IGNORED in left and len(left) > 2 and len(names or ()) != len(left):
        others = sorted(left.keys() - {IGNORED})
        if others[-1] < (len(names) if names else len(others)):
            del left[IGNORED]
    order = {label: i for i, label in enumerate(left.values())}
    if named and names and set(names) & set(left.values()):
        names = list(names) if BACKGROUND in {*names, *ignored} else [BACKGROUND, *names]
        if missing := set(left.values()) - set(names):
            raise ValueError(f"--classes lacks {min(missing)!r}; name it, or add it to --ignore")
        order = {label: names.index(label) for label in left.values()}
    elif names and not named and max(left, default=0) < len(names):
        order = {label: value for value, label in left.items()}
    elif names and len(names) != len(left):
        raise ValueError(
            f"--classes names {len(names)} classes, but {there_are}; give one name per value, or "
            "--ignore values"
        )
    names = list(names or (left.values() if named else [f"class_{i}" for i in range(len(left))]))
    if not 2 <= len(names) <= IGNORED:
        few = len(names) < 2
        hint = "two are needed" if few else "use masks without JPEG compression and smooth edges"
        raise ValueError(f"{len(names)} classes of at most {IGNORED}, {there_are}; {hint}")
    return names, {label: order.get(label, IGNORED) for label in labels.values()}


def _find_pairs(
    images: Path, reader: Masks, data: Path, val_share: float
) -> tuple[dict[str, list[_Pair]], list[str]]:
    """Return the pairs of each split, and a line for each file that is in none."""
    found, annotations = _separate(images, reader, data)
    index: dict[Key, list[Key]] = {}
    for split, name in annotations:
        for variant in _variants(name, _MASK):
            index.setdefault((split, variant), []).append((split, name))
    left_out, partner = [], {}
    for path, (split, name) in found.items():
        splits = (split, None) if split else (None, "train", "val", "test")
        keys = ((s, variant) for variant in _variants(name, _IMAGE) for s in splits)
        matches = next((index[key] for key in keys if key in index), [])
        if len(matches) == 1:
            partner[path] = (split or matches[0][0], name), matches[0]
        else:
            left_out.append(f"{path}: {'several annotations fit' if matches else 'no annotation'}")
    if not partner:
        first = next(iter(annotations.values()), Annotation(Path("none")))
        raise ValueError(
            f"{images}: none of {len(found)} images has the name of an annotation; compare "
            f"{next(iter(found), 'none')} with {first.name or first.path}"
        )
    matched = {match for _, match in partner.values()}
    left_out += [f"{a.path}: no image {a.name}" for k, a in annotations.items() if k not in matched]
    given = {"train", "val"} <= {split for (split, _), _ in partner.values()}
    hashed = {} if given else _hash_splits([n for (_, n), _ in partner.values()], data, val_share)
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


def _separate(images: Path, reader: Masks, data: Path) -> tuple[dict, dict]:
    """Return the keys of the images, and the annotations; they may share a folder."""
    found = keyed_files(images)
    found = {p: key for p, key in found.items() if data.resolve() not in p.resolve().parents}
    masks = {annotation.path for annotation in reader.files.values()} & found.keys()
    if masks == found.keys():  # one folder: the masks have an ending
        masks = {path for path in found if _MASK.search(path.stem)}
    found = {path: key for path, key in found.items() if path not in masks}
    return found, {key: a for key, a in reader.files.items() if a.path not in found}


def _variants(name: str, ending: re.Pattern) -> list[str]:
    base = name.rpartition("/")[2]
    return list(dict.fromkeys([name, ending.sub("", name), base, ending.sub("", base)]))


def _hash_splits(names: Sequence[str], data: Path, val_share: float) -> dict[str, str]:
    """Assign each name to a split by its hash, so the split stays when images are added."""
    shares = {n: int(hashlib.sha256(n.encode()).hexdigest(), 16) / 2**256 for n in names}
    splits = {name: "val" if shares[name] < val_share else "train" for name in names}
    if len(splits) > 1 and len(set(splits.values())) == 1:  # few images
        splits[min(splits, key=shares.get)] = "val"
        splits[max(splits, key=shares.get)] = "train"
    for split in ("train", "val"):  # an earlier run may have had few images
        written = data / "annotations" / split
        splits |= {name: split for name in names if (written / f"{name}.png").is_file()}
    return splits


def _write_pair(pair: _Pair, reader: Masks, labels: Mapping[str, int]) -> np.ndarray:
    """Write the image and the label map of a pair, unless both exist; return the label map (H, W).

    Raises LabelError or UnreadableFileError if a file cannot be read or the sizes differ.
    """
    if pair.is_complete():
        return np.asarray(Image.open(pair.label_file))
    path = str(pair.image)
    content = read_bytes(path)
    stored = decode(content, path, "color_ignore_orientation", "cv2").shape[:2]  # (H, W)
    values = reader.read(pair.annotation)
    table = np.zeros(max(reader.labels) + 1, np.uint8)
    table[list(reader.labels)] = [labels[label] for label in reader.labels.values()]
    label = table[values]  # (H, W)
    tag = orientation(content)
    upright = stored[::-1] if tag >= 5 else stored
    if label.shape not in (stored, upright):
        size = f"{label.shape[1]}x{label.shape[0]}"
        raise LabelError(f"{path}: is {stored[1]}x{stored[0]}, but its annotation is {size}")
    if tag == 1:
        pair.image_file.parent.mkdir(parents=True, exist_ok=True)
        pair.image_file.unlink(missing_ok=True)
        try:
            pair.image_file.symlink_to(pair.image.resolve())
        except OSError:  # a file system without links
            shutil.copyfile(pair.image, pair.image_file)
    else:  # written upright, because `image_demo` shows photos to the trained model upright
        annotated_upright = reader.upright if stored == upright else label.shape == upright
        if not annotated_upright:
            turned = Image.fromarray(label)
            turned.getexif()[EXIF_ORIENTATION] = tag
            label = np.asarray(ImageOps.exif_transpose(turned))
        with Image.open(pair.image) as image, atomic_write(pair.image_file) as part:
            ImageOps.exif_transpose(image).save(part, image.format, quality=95)
    with atomic_write(pair.label_file) as part:  # last: it marks the pair as complete
        Image.fromarray(label).save(part, "PNG")
    return label


def config_text(train: Summary, val: Summary, load_from: str | None, width: int) -> str:
    """Return a config that fits the sizes, the classes and the number of the images."""
    sizes = np.sort(list((train.sizes + val.sizes).elements()))  # (N, 2): short, long
    short, long = np.median(sizes, axis=0)
    side = min(LONG_SIDE, max(32, int(long) // 32 * 32))
    iterations = int(np.clip(12 * train.pairs // 100 * 100, 600, 20000))
    imagenet = load_from == "imagenet"
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
        init=_IMAGENET if imagenet else None,
        load_from=None if imagenet or not load_from else json.dumps(load_from),
        weights=_class_weights(train.pixels / train.pixels.sum()),
        rate=5e-4 if load_from else 2e-3,
        iterations=iterations,
        warmup=iterations // 20,
        interval=iterations // 8,
    )


def _class_weights(share: np.ndarray) -> list[float] | None:
    """Return weights by share^(-1/2) if a class is rare; larger weights blur its borders."""
    if share[share > 0].min() >= RARE:
        return None
    raw = np.where(share > 0, np.maximum(share, 1e-9) ** -0.5, 0)
    return [float(f"{min(weight, 20):.3g}") for weight in raw / (raw * share).sum()]
