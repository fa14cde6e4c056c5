"""Make a project from your images and masks: data folders and a fitting config."""

# `mmseg_ext.new_project` makes it. This file reads the flags, and prints what was found and what
# comes next. Its docstring is the command's help.

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mmseg_ext.commands import command, command_parser

_SHOWN, _MASKS_SHOWN = 5, 3  # lines of files that are left out, and of notes; masks of a photo
_QUOTES = "put a pattern in quotes, as 'DIR/*.png'"  # else the shell replaces it by the paths


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

--encoder takes a network of timm, and --from its weights: a .safetensors or .pth file with timm's
names, download, or scratch; or a checkpoint of an earlier project with this encoder.
""",
    )
    usual_error = parser.error

    def error(message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        is_expanded = unknown != message and not unknown.startswith("-")  # no flag
        usual_error(f"{message}; {_QUOTES}" if is_expanded else message)

    parser.error = error
    parser.add_argument("project", type=Path, help="folder to write")
    folder = "DIR or 'DIR/*ENDING.png'"
    parser.add_argument("--images", type=Path, required=True, metavar="DIR", help=folder)
    kinds = parser.add_mutually_exclusive_group(required=True)
    masks = f"{folder}, a value per class; or NAME=DIR, a mask per class"
    kinds.add_argument("--masks", nargs="+", metavar="DIR", help=masks)
    kinds.add_argument("--coco", nargs="+", metavar="FILE", help="polygons or RLE")
    kinds.add_argument("--labelme", metavar="DIR", help="JSON files with polygons")
    kinds.add_argument("--yolo", metavar="DIR", help=".txt with polygons, data.yaml")
    kinds.add_argument("--geojson", metavar="DIR", help="polygons, as QuPath exports")
    values = parser.add_mutually_exclusive_group()
    objects = "masks have a number per object, or each polygon is one"
    values.add_argument("--objects", action="store_true", help=objects)
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
    group = "in names: what * stands for stays in one split, as in 'scene*_'; or frames in a row"
    parser.add_argument("--group", default="", metavar="PATTERN", help=group)
    copies = "copies of a photo need not be in one split"
    parser.add_argument("--no-groups", dest="groups", action="store_false", help=copies)
    lists = "train=FILE val=FILE: names of images, one per line"
    parser.add_argument("--split", nargs="+", default=[], metavar="SPLIT=FILE", help=lists)
    rgb = "bands, numbered from 1, that pictures show as red, green and blue"
    parser.add_argument("--rgb", nargs=3, type=int, metavar="N", help=rgb)
    parser.add_argument("--tiles", action="store_true", help="keep the full resolution")
    turned = "the photos have no top (from above, microscope): training turns them by any angle"
    parser.add_argument("--any-side-up", action="store_true", help=turned)
    encoder = "a network of timm, such as convnext_tiny.fb_in22k; needs --from"
    parser.add_argument("--encoder", metavar="NAME", help=encoder)
    parser.add_argument("--from", dest="start", default="imagenet", help="see below")
    return parser


@command(parser)
def main(args: argparse.Namespace) -> None:
    from mmseg_ext.errors import join_names
    from mmseg_ext.own_dataset.item import Rank, usable
    from mmseg_ext.own_dataset.new_project import new_project
    from mmseg_ext.own_dataset.preview import PREVIEW
    from mmseg_ext.own_dataset.summary import print_splits

    given = dict(vars(args))
    given["split"] = _named(args.split, "--split", "SPLIT=FILE")
    if args.masks:
        is_one = len(args.masks) == 1 and ("=" not in args.masks[0] or Path(args.masks[0]).exists())
        todo = f"NAME=DIR or NAME='DIR/*ENDING.png', and {_QUOTES}"
        given["masks"] = args.masks[0] if is_one else _named(args.masks, "--masks", todo)
    made = new_project(given.pop("project"), given.pop("images"), **given)

    for item in usable(made.items):
        if not item.annotation.is_missing:
            masks = join_names([str(path) for path in item.annotation.paths], _MASKS_SHOWN)
            print(f"pairs: {item.image} with {masks}, ...")
            break
    left_out = [note for note in made.notes if note.rank == Rank.LEFT_OUT]
    notes = [f"note: {note}" for note in made.notes if note.rank != Rank.LEFT_OUT]
    file = args.project / "left_out.txt"
    for note in left_out[:_SHOWN]:
        print(f"left out: {note}")
    if left_out:
        print(f"left out: {len(left_out)} files, listed in {file}")
    print_splits(made.splits)
    for note in notes[:_SHOWN]:
        print(note)
    if notes[_SHOWN:]:
        with file.open("a", encoding="utf-8") as out:
            out.writelines(f"{note}\n" for note in notes[_SHOWN:])
        print(f"note: {len(notes) - _SHOWN} more notes, listed in {file}")
    values = []
    for text, i in made.classes.numbers.items():
        name = "ignored" if i >= len(made.classes.names) else made.classes.names[i]
        if name != text:
            values.append(f"{text} is {name}")
    if values:
        print(f"values: {join_names(values)}")
    print(f"{made.config}: {made.about}")
    if made.trains:
        print(f"{args.project / PREVIEW}: images with their labels; look at them before you train")
        config = shlex.quote(str(made.config))
        print(f"Next:\n  mmseg-ext check_dataset {config}\n  mmseg-ext train {config}")


def _named(texts: Sequence[str], flag: str, todo: str) -> dict[str, str]:
    """Return the paths of texts such as `leaf=m/leaf` by their names."""
    paths = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not name.strip() or not path or name in paths:
            raise ValueError(f"{flag} {text}: write each once as {todo}")
        paths[name] = path
    return paths
