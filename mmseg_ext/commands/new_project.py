"""Make a project from your images and masks: data folders and a fitting config."""

# `own_dataset.project` makes the data. This file reads the flags, and prints what was found and
# what comes next. Its docstring is the command's help.

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from mmseg_ext.commands import command, command_parser

if TYPE_CHECKING:
    from mmseg_ext.own_dataset.annotations.reader import Reader
    from mmseg_ext.own_dataset.project import Project
    from mmseg_ext.own_dataset.splits import SplitRule
    from mmseg_ext.own_dataset.starting_weights import Start

_LINES_SHOWN, _MASKS_SHOWN, _NOTES_SHOWN = 5, 3, 5
_FOLD = re.compile(r"([1-9]\d*)/([1-9]\d*)")  # 2/5
_QUOTES = re.compile(r'["\\\n]')  # as in my"project


def parser() -> argparse.ArgumentParser:
    parser = command_parser(
        __doc__,
        """\
Images and annotations are paired by their names; folders train, val and test are the splits. Run
the command again after adding images: it keeps the split and the config.

--from is imagenet (default; an installed EfficientNet-Lite0), scratch, resnet18 (mmsegmentation's,
which training downloads), a checkpoint of an earlier project, or weights of this project:
ea_lite0_fpn_nuclei_1600 (microscopy, Apache-2.0), or in a clone ea_lite0_fpn_camvid_1600 (street
scenes; non-commercial use only, which then also holds for your model).
""",
    )
    parser.add_argument("project", type=Path, help="folder to write")
    folder = "DIR or 'DIR/*ENDING.png'"
    parser.add_argument("--images", type=Path, required=True, metavar="DIR", help=folder)
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--masks", type=Path, metavar="DIR", help=f"{folder}, a value per class")
    kinds.add_argument("--coco", type=Path, nargs="+", metavar="FILE", help="polygons or RLE")
    kinds.add_argument("--labelme", type=Path, metavar="DIR", help="JSON files with polygons")
    kinds.add_argument("--yolo", type=Path, metavar="DIR", help=".txt with polygons, data.yaml")
    kinds.add_argument("--geojson", type=Path, metavar="DIR", help="polygons, as QuPath exports")
    values = parser.add_mutually_exclusive_group()
    values.add_argument("--objects", action="store_true", help="masks have a number per object")
    binary = "masks are black and white, perhaps with smooth edges or as JPEG"
    values.add_argument("--binary", action="store_true", help=binary)
    missing = "photos without a file of annotations show only background"
    parser.add_argument("--background-without-annotation", action="store_true", help=missing)
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="in the order of the values")
    parser.add_argument("--ignore", nargs="+", default=[], help="values, #rrggbb or names")
    val = parser.add_mutually_exclusive_group()
    val.add_argument("--val", type=float, default=0.2, metavar="SHARE", help="default: 0.2")
    fold = "part and number of parts, as 2/5: this part of the images is val"
    val.add_argument("--fold", default="", metavar="N/K", help=fold)
    parser.add_argument("--test", type=float, default=0, metavar="SHARE", help="default: 0")
    group = "in names: what * stands for stays in one split, as in 'scene*_'"
    parser.add_argument("--group", default="", metavar="PATTERN", help=group)
    lists = "train=FILE val=FILE: names of images, one per line"
    parser.add_argument("--split", nargs="+", default=[], metavar="SPLIT=FILE", help=lists)
    rgb = "bands, numbered from 1, that pictures show as red, green and blue"
    parser.add_argument("--rgb", nargs=3, type=int, metavar="N", help=rgb)
    parser.add_argument("--tiles", action="store_true", help="keep the full resolution")
    parser.add_argument("--from", dest="start", default="imagenet", help="see below")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.own_dataset.project import make_project
    from mmseg_ext.own_dataset.starting_weights import starting_weights

    _check_flags(args)
    rule = _split_rule(args)
    start = starting_weights(args.start)
    reader = _find_annotations(args)
    reader.missing_is_background = args.background_without_annotation
    made = make_project(args.project, args.images, reader, rule, args.classes, args.ignore)
    _print_project(made, args.project)
    _print_notes(made, args.project)
    _print_values(made)
    config = args.project / "config.py"
    is_new = not config.exists()
    if is_new:
        _write_config(args, made, start)
    elif not _keep_config(config, made):
        return
    _print_pictures(config, made)
    if is_new:
        _look_for_weights(start.checkpoint)
    config_word = shlex.quote(str(config))
    print(f"Next:\n  mmseg-ext check_dataset {config_word}\n  mmseg-ext train {config_word}")


def _check_flags(args: argparse.Namespace) -> None:
    if _QUOTES.search(str(args.project.absolute())):  # mmengine puts it into the config
        raise ValueError(f"{args.project}: a project's path cannot have quotes or backslashes")
    if not 0 < args.val < 1:
        raise ValueError(f"--val {args.val}: must be between 0 and 1")
    if not 0 <= args.test < 1 - args.val:
        raise ValueError(f"--test {args.test}: must be at least 0 and below {1 - args.val}")


def _split_rule(args: argparse.Namespace) -> "SplitRule":
    from mmseg_ext.datasets.checked_dataset import SPLITS
    from mmseg_ext.own_dataset.splits import SplitRule

    if args.fold:
        found = _FOLD.fullmatch(args.fold)
        if not found or not 1 <= int(found[1]) <= int(found[2]) or int(found[2]) < 2:
            raise ValueError(f"--fold {args.fold}: write the part and the number of parts, as 2/5")
    lists = {}
    for text in args.split:
        split, _, file = text.partition("=")
        if split not in SPLITS or not file or split in lists:
            raise ValueError(f"--split {text}: write {'=FILE, '.join(SPLITS)}=FILE, each once")
        lists[split] = Path(file)
    return SplitRule(args.val, args.test, args.group, args.fold, lists)


def _find_annotations(args: argparse.Namespace) -> "Reader":
    """Return the annotations that one of the flags names."""
    from mmseg_ext.own_dataset.annotations.coco import Coco
    from mmseg_ext.own_dataset.annotations.geojson import Geojson
    from mmseg_ext.own_dataset.annotations.labelme import Labelme
    from mmseg_ext.own_dataset.annotations.masks import BinaryMasks, Masks, ObjectMasks
    from mmseg_ext.own_dataset.annotations.yolo import Yolo

    for flag in ("objects", "binary"):
        if vars(args)[flag] and not args.masks:
            raise ValueError(f"--{flag}: reads masks; give --masks DIR")
    if args.background_without_annotation and args.masks:
        raise ValueError(
            "--background-without-annotation: is for polygons; save a mask of only background for "
            "each photo without objects"
        )
    if args.objects:
        return ObjectMasks.find(args.masks)
    if args.binary:
        return BinaryMasks.find(args.masks)
    readers = {"masks": Masks, "coco": Coco, "labelme": Labelme, "yolo": Yolo, "geojson": Geojson}
    (flag,) = [flag for flag in readers if vars(args)[flag]]  # the parser requires one
    return readers[flag].find(vars(args)[flag])


def _print_project(made: "Project", folder: Path) -> None:
    """Print a pair, what is left out, and the numbers of pairs and pixels."""
    from mmseg_ext.own_dataset.check import print_summaries

    image, mask, *more = made.example
    masks = [str(mask), *(path.name for path in more[:_MASKS_SHOWN])]
    print(f"pairs: {image} with {', '.join(masks)}, ...")
    for line in made.left_out[:_LINES_SHOWN]:
        print(f"left out: {line}")
    if made.left_out:
        print(f"left out: {len(made.left_out)} files, listed in {folder / 'left_out.txt'}")
    if made.earlier:
        print(f"note: training also uses {len(made.earlier)} pairs of earlier runs, such as")
        print(f"  {made.earlier[0]}; if it should not, delete these files and their label maps")
    print_summaries(made.summaries)


def _print_notes(made: "Project", folder: Path) -> None:
    """Print the most important notes, and add the others to `left_out.txt`."""
    from mmseg_ext.own_dataset.check import copy_notes, summary_notes

    notes = list(copy_notes(made.summaries))  # the score would be wrong
    notes += [f"note: {note}" for note in made.notes]
    notes += summary_notes(made.summaries, made.labels)
    for line in notes[:_NOTES_SHOWN]:
        print(line)
    others = notes[_NOTES_SHOWN:]
    if others:
        file = folder / "left_out.txt"
        with file.open("a", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in others)
        print(f"note: {len(others)} more notes, listed in {file}")


def _print_values(made: "Project") -> None:
    """Print the class of each value that is not the class's name."""
    from mmseg_ext.errors import join_names

    classes = made.summaries[0].classes
    values = []
    for text, i in made.labels.items():
        name = classes[i] if i < len(classes) else "ignored"
        if name != text:
            values.append(f"{text} is {name}")
    if values:
        print(f"values: {join_names(values)}")


def _write_config(args: argparse.Namespace, made: "Project", start: "Start") -> None:
    from mmseg_ext.images.files import image_files
    from mmseg_ext.own_dataset.channels import measure_images
    from mmseg_ext.own_dataset.config_file import write_config

    config = args.project / "config.py"
    channels = measure_images(image_files(args.project / "data/images/train", recursive=True))
    write_config(args.project, made, start, args.tiles, channels, args.rgb)
    if channels:
        print(f"bands: {channels.count}, with their ranges of values in {config}")
        for band in channels.alpha:
            declared = f"band {band + 1} is declared as alpha, but has content, so it is kept"
            print(f"note: {declared}; if it is alpha, save the images without it")
    print(f"{config}: training starts from {start.about}")


def _keep_config(config: Path, made: "Project") -> bool:
    """Change only the names of classes in a config; return False if it has other classes."""
    from mmseg_ext.errors import join_names
    from mmseg_ext.own_dataset.config_file import rename_classes

    classes = made.summaries[0].classes
    others = rename_classes(config, classes)
    if others:
        print(f"{config}: has the classes {join_names(others)}, and the data {join_names(classes)}")
        print("  delete the config and run the same command again")
        return False
    print(f"{config}: exists, unchanged except for names of classes")
    return True


def _print_pictures(config: Path, made: "Project") -> None:
    """Print what the config does to narrow objects, and write the preview."""
    from mmengine.config import Config

    from mmseg_ext.own_dataset.config_file import about_reduction
    from mmseg_ext.own_dataset.preview import PREVIEW, write_preview

    settings = Config.fromfile(config)
    mode = settings.get("model", {}).get("test_cfg", {}).get("mode")  # `slide` with tiles
    side = max(settings.get("scale", [0]))
    if mode == "whole" and side:
        about = about_reduction(made.summaries[0], side)
        if about:
            print(f"note: {about}")
    preview = config.with_name(PREVIEW)
    write_preview(settings, made.summaries, preview)
    print(f"{preview}: images with their labels; look at them before you train")


def _look_for_weights(checkpoint: str | None) -> None:
    """Print what to install if the weights are in a package that is missing."""
    from mmseg_ext.converters.package_weights import SCHEME, load_from_package
    from mmseg_ext.errors import CheckpointError, StackError

    if checkpoint is None or not checkpoint.startswith(SCHEME):
        return
    try:
        load_from_package(checkpoint)
    except (CheckpointError, StackError) as error:
        print(f"note: the training needs {error}")
