"""Segment images with an exported file, without mmsegmentation and without mmseg_ext.

    python demo/run_exported.py MODEL.onnx IMAGE|FOLDER OUT

The script needs numpy, Pillow and onnxruntime, tifffile for TIFF, and OpenCV for color PNGs of 16
bits. To use it elsewhere, copy values.py and seen.py of mmseg_ext/images next to it.

For each image, OUT gets a label map (`labels/NAME.png`, class indices) and a picture of the classes
over the image, without background and borders (`overlays/NAME.png`), rotated by its EXIF
orientation. Unreadable images are listed at the end, and the exit status is then 1.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image

os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")  # it prints lines about damaged files
HERE = Path(__file__).resolve().parent
# Next to this script, in a clone, and in an installation.
READERS = (HERE, HERE.parent / "mmseg_ext/images", HERE.parent.parent / "images")
sys.path += [str(folder) for folder in READERS if (folder / "values.py").is_file()]
image_values = importlib.import_module("values")
seen = importlib.import_module("seen")
segment = seen.segment
NOT_DRAWN = ("background", "class_0", "border")  # class_0: the lowest value of masks without names


def find(path: Path) -> list[Path]:
    """Return the image at `path`, or the images in that folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"{path}: does not exist")
    files = sorted(file for file in path.glob("[!.]*") if file.is_file())  # not hidden
    found = [file for file in files if file.suffix.lower() in image_values.IMAGE_SUFFIXES]
    note = image_values.other_photos(files)
    if not found:
        raise ValueError(f"{path}: contains no image{note and ', ' + note}")
    if note:
        print(f"warning: {path}: {note}", file=sys.stderr)
    return found


def load(path: Path):
    """Return a function from images (1, 3, H, W) to scores (1, classes, H, W), and the metadata."""
    import onnxruntime

    if not path.is_file():
        raise ValueError(f"{path}: does not exist")
    try:
        session = onnxruntime.InferenceSession(path)
        metadata = {"channels": 3, "value_range": None, "rgb_bands": [1, 2, 3]}  # of old files
        metadata |= seen.read_metadata(session.get_modelmeta().custom_metadata_map)
        # (classes + 1, 3): the last one is of a foreground without a class for the background.
        metadata["palette"] = np.array([*metadata["palette"], [255] * 3], dtype=np.uint8)
    except Exception as error:  # onnxruntime has its own exceptions
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: not an exported segmentor: {reason}") from error
    if metadata.get("stored_values"):
        raise ValueError(f"{path}: takes values as files store them; this script gives 0 to 255")
    # Some programs halve the size of files by float16, also of their inputs.
    kind = np.float16 if session.get_inputs()[0].type == "tensor(float16)" else np.float32

    def run(images: np.ndarray) -> np.ndarray:
        return session.run(["scores"], {"images": images.astype(kind)})[0].astype(np.float32)

    return run, metadata


def draw_overlay(metadata: dict, picture: np.ndarray, labels: np.ndarray) -> Image.Image:
    """Return a picture RGB (H, W, 3) with the classes in color, without background and borders."""
    photo = Image.fromarray(picture)
    overlay = Image.blend(photo, Image.fromarray(metadata["palette"][labels]), 0.5)
    hidden = [i for i, name in enumerate(metadata["classes"]) if name in NOT_DRAWN]
    overlay.paste(photo, mask=Image.fromarray(np.isin(labels, hidden)))
    return overlay


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    values = "values of images of more than 8 bits that become black and white"
    parser.add_argument("--value-range", nargs=2, type=float, help=values)
    scale = "the scale of the training images for photos longer or shorter than all of them"
    parser.add_argument("--training-scale", action="store_true", help=scale)
    args = parser.parse_args()
    try:
        run, metadata = load(args.model)
        if args.training_scale and not metadata.get("image_sides"):
            raise ValueError(f"{args.model}: has no image_sides; run without --training-scale")
        paths = find(args.images)
        for kind in ("labels", "overlays"):
            if (args.out / kind).resolve() == paths[0].parent.resolve():
                raise ValueError(f"{args.out}: its {kind} are the images; set another folder")
            (args.out / kind).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    value_range = args.value_range or metadata["value_range"]
    broken, written = [], set()
    for path in paths:
        stem = path.stem
        while stem.casefold() in written:  # a.jpg and a.png: the second result is a.png.png
            stem = path.name if stem == path.stem else f"{stem}.png"
        try:
            pixels = image_values.read_pixels(path.read_bytes()).upright()
            values = pixels.fit(metadata["channels"], value_range)  # (H, W, C)
            if note := pixels.note(value_range):
                print(f"warning: {path}: {note}", file=sys.stderr)
            note = seen.Seen.from_metadata(metadata).note(*values.shape[:2], "use --training-scale")
            if note and not args.training_scale:
                print(f"warning: {path}: {note}", file=sys.stderr)
            labels = segment(run, metadata, values, args.training_scale)
            Image.fromarray(labels).save(args.out / f"labels/{stem}.png")
            picture = values[..., [band - 1 for band in metadata["rgb_bands"]]]
            draw_overlay(metadata, picture, labels).save(args.out / f"overlays/{stem}.png")
        except Exception as error:  # of any kind: decoders, the network, a name that is too long
            broken.append(f"{path}: {' '.join(str(error).split())}")
            continue
        written.add(stem.casefold())
    print(f"{len(paths) - len(broken)} of {len(paths)} images segmented into {args.out}")
    print("\n".join(broken), file=sys.stderr, end="\n" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
