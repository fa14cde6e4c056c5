"""Segment images with an exported file, without mmsegmentation and without mmseg_ext.

    python demo/run_exported.py MODEL.onnx IMAGE|FOLDER OUT

needs numpy, Pillow and onnxruntime. It takes no .pt2: `torch.export.load` unpickles parts of it, so
that a stranger's file could run code.

For each image, OUT gets a label map (`NAME.png`, class indices) and a picture of the classes over
the image (`NAME_overlay.png`), turned as its EXIF orientation says. Unreadable images are named at
the end and make the status 1.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")


def find(path: Path) -> list[Path]:
    """The images at `path`, a file or a folder."""
    if path.is_file():
        return [path]
    found = sorted(p for p in path.glob("*") if p.suffix.lower() in IMAGES)
    if not found:
        raise ValueError(f"{path}: {'holds no image' if path.is_dir() else 'is not there'}")
    return found


def load(path: Path):
    """A function from images (1, 3, H, W) to scores (1, classes, H, W), and the metadata."""
    import onnxruntime

    if not path.is_file():
        raise ValueError(f"{path}: is not there")
    if path.suffix != ".onnx":
        raise ValueError(f"{path}: only .onnx is taken; loading a .pt2 could run code from it")
    try:
        session = onnxruntime.InferenceSession(path)
        properties = session.get_modelmeta().custom_metadata_map
        metadata = {key: json.loads(value) for key, value in properties.items()}
        metadata["palette"] = np.array(metadata["palette"], dtype=np.uint8)  # (classes, 3)
    except Exception as error:  # onnxruntime raises kinds of its own
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: no exported segmentor: {reason}") from error
    return lambda images: session.run(["scores"], {"images": images})[0], metadata


def segment(run, metadata: dict, image: Image.Image) -> np.ndarray:
    """Class indices (H, W) of an RGB image; a file for one size sees the image resized to it."""
    size = image.size
    if not metadata["dynamic"]:
        height, width = metadata["size"]
        image = image.resize((width, height))
    pixels = np.asarray(image, dtype=np.float32).transpose(2, 0, 1)[None]  # (1, 3, H, W)
    labels = run(np.ascontiguousarray(pixels))[0].argmax(0).astype(np.uint8)  # (H, W)
    return np.asarray(Image.fromarray(labels).resize(size, Image.Resampling.NEAREST))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    try:
        run, metadata = load(args.model)
        paths = find(args.images)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    broken = []
    for path in paths:
        try:
            with Image.open(path) as file:
                image = ImageOps.exif_transpose(file).convert("RGB")
        except Exception as error:  # decoders raise many kinds
            broken.append(f"{path}: {error}")
            continue
        labels = segment(run, metadata, image)
        Image.fromarray(labels).save(args.out / f"{path.stem}.png")
        overlay = Image.blend(image, Image.fromarray(metadata["palette"][labels]), 0.5)
        overlay.save(args.out / f"{path.stem}_overlay.png")
    print(f"{len(paths) - len(broken)} of {len(paths)} images segmented into {args.out}")
    print("\n".join(broken), file=sys.stderr, end="\n" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
