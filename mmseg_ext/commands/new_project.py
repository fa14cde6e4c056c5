"""Make a project from your images and masks: data folders and a fitting config."""

import argparse
import re
import shlex
from pathlib import Path

from mmseg_ext.commands import command, command_parser

_SHOWN = 10


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
    from mmengine.config import Config

    from mmseg_ext.converters.package_weights import SCHEME, load_from_package
    from mmseg_ext.datasets.label_loading import join_names
    from mmseg_ext.errors import CheckpointError, StackError
    from mmseg_ext.images.files import image_files
    from mmseg_ext.own_dataset.annotations.masks import Masks, ObjectMasks
    from mmseg_ext.own_dataset.annotations.polygons import Coco, Labelme
    from mmseg_ext.own_dataset.channels import measure_images
    from mmseg_ext.own_dataset.check import copy_notes, print_summaries
    from mmseg_ext.own_dataset.config_file import about_reduction, rename_classes, write_config
    from mmseg_ext.own_dataset.preview import PREVIEW, write_preview
    from mmseg_ext.own_dataset.project import make_project
    from mmseg_ext.own_dataset.starting_weights import starting_weights

    if re.search(r'["\\\n]', str(args.project.absolute())):  # mmengine puts it into the config
        raise ValueError(f"{args.project}: a project's path cannot have quotes or backslashes")
    if not 0 < args.val < 1:
        raise ValueError(f"--val {args.val}: must be between 0 and 1")
    if not 0 <= args.test < 1 - args.val:
        raise ValueError(f"--test {args.test}: must be at least 0 and below {1 - args.val}")
    start = starting_weights(args.start)
    if args.objects and not args.masks:
        raise ValueError("--objects: reads masks; give --masks DIR")
    if args.masks:
        reader = (ObjectMasks if args.objects else Masks)(args.masks)
    else:
        reader = Coco(args.coco) if args.coco else Labelme(args.labelme)
    shares = args.val, args.test, args.group
    made = make_project(args.project, args.images, reader, args.classes, args.ignore, *shares)
    image, mask, *more = made.example
    print(f"pairs: {image} with {', '.join([str(mask), *(path.name for path in more[:3])])}, ...")
    for line in made.left_out[:_SHOWN]:
        print(f"left out: {line}")
    if made.left_out:
        print(f"left out: {len(made.left_out)} files, listed in {args.project / 'left_out.txt'}")
    if made.earlier:
        print(f"note: training also uses {len(made.earlier)} pairs of earlier runs, such as")
        print(f"  {made.earlier[0]}; if it should not, delete these files and their label maps")
    print_summaries(made.summaries, made.labels)
    for note in (*copy_notes(made.summaries), *(f"note: {note}" for note in made.notes)):
        print(note)
    names = [*made.summaries[0].classes, *["ignored"] * 256]
    values = [f"{value} is {names[i]}" for value, i in made.labels.items()]
    print(f"values: {join_names(values)}")
    config, classes = args.project / "config.py", made.summaries[0].classes
    if is_new := not config.exists():
        channels = measure_images(image_files(args.project / "data/images/train", True))
        write_config(args.project, made, start, args.tiles, channels, args.rgb)
        if channels:
            print(f"bands: {channels.count}, with their ranges of values in {config}")
        print(f"{config}: training starts from {start.about}")
    elif before := rename_classes(config, classes):
        print(f"{config}: has the classes {join_names(before)}, and the data {join_names(classes)}")
        print("  delete the config and run the same command again")
        return
    else:
        print(f"{config}: exists, unchanged except for names of classes")
    settings = Config.fromfile(config)
    mode = settings.get("model", {}).get("test_cfg", {}).get("mode")  # `slide` with tiles
    side = max(settings.get("scale", [0])) if mode == "whole" else 0
    if side and (about := about_reduction(made.summaries[0], side)):
        print(f"note: {about}")
    write_preview(settings, made.summaries, args.project / PREVIEW)
    print(f"{args.project / PREVIEW}: images with their labels; look at them before you train")
    try:
        if is_new and str(start.checkpoint).startswith(SCHEME):
            load_from_package(str(start.checkpoint))
    except (CheckpointError, StackError) as error:
        print(f"note: the training needs {error}")
    config = shlex.quote(str(config))
    work_dir = shlex.quote(str(args.project / "work_dir"))
    # Your shell completes the name: a run keeps one such file.
    checkpoint = f"{work_dir}/best_mIoU_iter_*.pth"
    print("Next:")
    print(f"  mmseg-ext check_dataset {config}")
    print(f"  mmseg-ext train {config}")
    print(f"  mmseg-ext test {config} {checkpoint}")
    print(f"  mmseg-ext report {work_dir}")
    pictures = shlex.quote(str(args.project / "data/images/val"))
    out = f"--json --out {work_dir}/pictures"  # the objects as GeoJSON, too
    if any(path.is_dir() for path in (args.project / "data/images/val").iterdir()):
        out = f"--recursive {out}"
    print(f"  mmseg-ext image_demo {pictures} {config} {checkpoint} {out}")
