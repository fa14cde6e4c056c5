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
    from mmseg_ext.own_dataset.starting_weights import Start

_LINES_SHOWN, _MASKS_SHOWN = 10, 3
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
    parser.add_argument("--objects", action="store_true", help="masks have a number per object")
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="in the order of the values")
    parser.add_argument("--ignore", nargs="+", default=[], help="values, #rrggbb or names")
    parser.add_argument("--val", type=float, default=0.2, metavar="SHARE", help="default: 0.2")
    parser.add_argument("--test", type=float, default=0, metavar="SHARE", help="default: 0")
    group = "in names: what * stands for stays in one split, as in 'scene*_'"
    parser.add_argument("--group", default="", metavar="PATTERN", help=group)
    rgb = "bands, numbered from 1, that pictures show as red, green and blue"
    parser.add_argument("--rgb", nargs=3, type=int, metavar="N", help=rgb)
    parser.add_argument("--tiles", action="store_true", help="keep the full resolution")
    parser.add_argument("--from", dest="start", default="imagenet", help="see below")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.own_dataset.check import copy_notes
    from mmseg_ext.own_dataset.project import make_project
    from mmseg_ext.own_dataset.starting_weights import starting_weights

    _check_flags(args)
    start = starting_weights(args.start)
    reader = _find_annotations(args)
    shares = args.val, args.test, args.group
    made = make_project(args.project, args.images, reader, args.classes, args.ignore, *shares)
    _print_project(made, args.project)
    for line in copy_notes(made.summaries):
        print(line)
    for note in made.notes:
        print(f"note: {note}")
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
    _print_next(args.project)


def _check_flags(args: argparse.Namespace) -> None:
    if _QUOTES.search(str(args.project.absolute())):  # mmengine puts it into the config
        raise ValueError(f"{args.project}: a project's path cannot have quotes or backslashes")
    if not 0 < args.val < 1:
        raise ValueError(f"--val {args.val}: must be between 0 and 1")
    if not 0 <= args.test < 1 - args.val:
        raise ValueError(f"--test {args.test}: must be at least 0 and below {1 - args.val}")


def _find_annotations(args: argparse.Namespace) -> "Reader":
    """Return the annotations that one of the flags names."""
    from mmseg_ext.own_dataset.annotations.coco import Coco
    from mmseg_ext.own_dataset.annotations.labelme import Labelme
    from mmseg_ext.own_dataset.annotations.masks import Masks, ObjectMasks

    if args.objects and not args.masks:
        raise ValueError("--objects: reads masks; give --masks DIR")
    if args.objects:
        return ObjectMasks.find(args.masks)
    if args.masks:
        return Masks.find(args.masks)
    if args.coco:
        return Coco.find(args.coco)
    return Labelme.find(args.labelme)


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
    print_summaries(made.summaries, made.labels)


def _print_values(made: "Project") -> None:
    from mmseg_ext.errors import join_names

    classes = made.summaries[0].classes
    values = []
    for text, i in made.labels.items():
        values.append(f"{text} is {classes[i] if i < len(classes) else 'ignored'}")
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


def _print_next(project: Path) -> None:
    """Print the commands that follow, with paths that a shell reads."""
    config = shlex.quote(str(project / "config.py"))
    work_dir = shlex.quote(str(project / "work_dir"))
    # Your shell completes the name: a run keeps one such file.
    checkpoint = f"{work_dir}/best_mIoU_iter_*.pth"
    images = project / "data/images/val"
    out = f"--json --out {work_dir}/pictures"  # the objects as GeoJSON, too
    if any(path.is_dir() for path in images.iterdir()):
        out = f"--recursive {out}"
    print("Next:")
    print(f"  mmseg-ext check_dataset {config}")
    print(f"  mmseg-ext train {config}")
    print(f"  mmseg-ext test {config} {checkpoint}")
    print(f"  mmseg-ext report {work_dir}")
    print(f"  mmseg-ext image_demo {shlex.quote(str(images))} {config} {checkpoint} {out}")
