"""`new_project`: a project from your images and annotations, with data, config and preview."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmseg_ext.atomic_write import write_text
from mmseg_ext.checkpoint.files import write_weights
from mmseg_ext.converters import package_weights
from mmseg_ext.errors import CheckpointError, StackError, join_names
from mmseg_ext.images.files import image_files
from mmseg_ext.own_dataset.annotations.coco import Coco
from mmseg_ext.own_dataset.annotations.geojson import Geojson
from mmseg_ext.own_dataset.annotations.labelme import Labelme
from mmseg_ext.own_dataset.annotations.masks import ClassMasks, Masks
from mmseg_ext.own_dataset.annotations.reader import Reader
from mmseg_ext.own_dataset.annotations.yolo import Yolo
from mmseg_ext.own_dataset.channels import measure_images
from mmseg_ext.own_dataset.config_file import ENCODER, follow_classes, write_config
from mmseg_ext.own_dataset.item import Rank
from mmseg_ext.own_dataset.label_maps import add_note_on_crops, add_note_on_reduction
from mmseg_ext.own_dataset.preview import PREVIEW, write_preview
from mmseg_ext.own_dataset.project import Project, make_project
from mmseg_ext.own_dataset.splits import SplitRule
from mmseg_ext.own_dataset.starting_weights import starting_weights


@dataclass
class NewProject(Project):
    """A project with its config.

    Attributes:
        config: the path of the config.
        about: the weights that the config starts from, or that it is kept.
        trains: whether the config fits the data; if not, `about` has the next step.
    """

    config: Path
    about: str
    trains: bool = True


def new_project(
    folder: str | Path,
    images: str | Path,
    *,
    masks: str | Path | Mapping[str, str | Path] | None = None,
    coco: str | Path | Sequence[str | Path] | None = None,
    labelme: str | Path | None = None,
    yolo: str | Path | None = None,
    geojson: str | Path | None = None,
    objects: bool = False,
    binary: bool = False,
    background_without_annotation: bool = False,
    classes: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    val: float = 0.2,
    test: float = 0,
    fold: str = "",
    group: str = "",
    groups: bool = True,
    split: Mapping[str, str | Path] | None = None,
    rgb: Sequence[int] | None = None,
    tiles: bool = False,
    any_side_up: bool = False,
    start: str = "imagenet",
    encoder: str | None = None,
) -> NewProject:
    """Make or update a project: `data`, `config.py`, `preview.png` and `left_out.txt` in `folder`.

    Images and annotations are paired by their names; folders train, val and test are the splits.
    Further runs add images, and keep the splits, the classes and the config. docs/own_dataset.md
    explains the arguments.

    Args:
        images: folder, or a pattern such as `photos/*_rgb.png`; folders are searched completely.
        masks, coco, labelme, yolo, geojson: the annotations; give exactly one. Masks of one class
            each are a folder or a pattern for the name of each class.
        objects: masks have a number per object, or each polygon is an object.
        binary: masks are black and white, perhaps with smooth edges.
        background_without_annotation: photos without annotation show only background.
        classes: names in the order of the values; further runs follow `data/classes.csv`.
        ignore: values, colors (#rrggbb) or names that are ignored.
        val, test: shares of the images, 0 to 1.
        fold: part and number of parts, as "2/5"; this part of the images is val.
        group: pattern; images whose names have the same text for its * stay in one split. A number
            keeps so many frames in a row together.
        groups: whether copies of a photo stay in one split, too.
        split: a file with names of images for each split.
        rgb: bands, from 1, that pictures show as red, green and blue.
        tiles: train on parts of the images in full resolution.
        any_side_up: the images have no top, such as those from above or of a microscope; training
            turns them by any angle.
        start: `imagenet`, `scratch`, `resnet18`, the name of pretrained weights, or a checkpoint;
            of an encoder `download`, `scratch`, a file with its weights, or a checkpoint.
        encoder: a network of timm, such as `convnext_tiny.fb_in22k`, for EfficientNet-Lite0.

    Raises:
        ValueError: if an argument is wrong, or no image has an annotation.
        LabelError: if a file with all annotations cannot be read.
    """
    folder = Path(folder)
    if set('"\\\n').intersection(folder.absolute().as_posix()):  # mmengine puts it into the config
        raise ValueError(f"{folder}: a project's path cannot have quotes or backslashes")
    # One name is not the sequence of its letters.
    classes = [classes] if isinstance(classes, str) else classes
    ignore = [ignore] if isinstance(ignore, str) else ignore
    lists = {name: Path(file) for name, file in (split or {}).items()}
    rule = SplitRule(val, test, group, groups, fold, lists)
    config, trains = folder / "config.py", True
    # A wrong name is found before anything is read. With a config that is kept, an encoder's file,
    # which can be gone, is only read again if the project has lost its copy of the weights.
    is_kept, copied = config.exists(), folder / ENCODER
    text = config.read_text(encoding="utf-8") if is_kept else ""
    is_lost = ENCODER in text and not copied.exists()
    is_read = not (is_kept and encoder) or (is_lost and f'"{encoder}"' in text)
    weights = starting_weights(start, encoder) if is_read else None
    # A new format is a row here, an argument, a flag of the command, and its reader.
    formats = (
        (Masks, masks),
        (Coco, coco),
        (Labelme, labelme),
        (Yolo, yolo),
        (Geojson, geojson),
    )
    reader = _find_annotations(formats, objects, binary, background_without_annotation)
    made = make_project(folder, Path(images), reader, rule, classes, ignore)
    left_out = [f"{note}\n" for note in made.notes if note.rank == Rank.LEFT_OUT]
    write_text("".join(left_out), folder / "left_out.txt")
    notes = made.notes
    if weights and weights.weights:
        write_weights(weights.weights, copied, about={"license": weights.terms})
    if is_kept or weights is None:
        about = "exists, unchanged except for classes"
        if not follow_classes(config, made):
            trains = False
            before = join_names(list(Config.fromfile(config).get("classes", ())))
            about = (
                f"has the classes {before}, and the data {join_names(made.classes.names)}; delete "
                "the config and run the same command again"
            )
    else:
        channels = measure_images(image_files(folder / "data/images/train", recursive=True))
        write_config(folder, made, weights, tiles, channels, rgb, any_side_up)
        about = f"training starts from {weights.about}"
        for band in channels.alpha if channels else ():
            text = f"band {band + 1} is declared as alpha, but has content, so it is kept"
            notes.add(Rank.LABELS, f"{text}; if it is alpha, save the images without it")
        if channels:
            text = f"{channels.count} bands, with their ranges of values in {config}"
            notes.add(Rank.HINT, text)
        if weights.checkpoint and weights.checkpoint.startswith(package_weights.SCHEME):
            try:
                package_weights.load_from_package(weights.checkpoint)
            except (CheckpointError, StackError) as error:
                notes.add(Rank.TRAINING, f"the training needs {error}")
    if is_lost and not copied.exists():
        text = f"{copied}: is missing, and a training starts from it; run again with --encoder and"
        notes.add(Rank.TRAINING, f"{text} --from, as in the first run")
    if trains:
        settings = Config.fromfile(config)
        add_note_on_reduction(made.splits[0], settings, notes)
        add_note_on_crops(made.splits[0], settings, notes)
        write_preview(settings, made.splits, folder / PREVIEW)
    return NewProject(made.items, made.classes, made.splits, notes, config, about, trains)


def _find_annotations(
    formats: Sequence[tuple[type[Reader], Any]],
    objects: bool,
    binary: bool,
    missing_is_background: bool,
) -> Reader:
    """Return the annotations of the only format that has a source."""
    given = [(kind, source) for kind, source in formats if source]
    if len(given) != 1:
        names = ", ".join(kind.flag.removeprefix("--") for kind, _ in formats)
        raise ValueError(f"new_project: give one of {names}, not {len(given)}")
    ((kind, source),) = given
    if binary and kind is not Masks:
        raise ValueError("--binary: reads masks; give --masks DIR")
    if missing_is_background and kind is Masks:
        raise ValueError(
            "--background-without-annotation: is for polygons; save a mask of only background for "
            "each photo without objects"
        )
    if objects and binary:
        raise ValueError("--objects, --binary: masks either number objects or are black and white")
    if isinstance(source, Mapping):
        if objects:
            first = next(iter(source.values()))
            raise ValueError(f"--objects: has no classes; write --masks {first}")
        kind = ClassMasks
    reader = kind.find(source)
    reader.objects, reader.binary = objects, binary
    reader.missing_is_background = missing_is_background
    return reader
