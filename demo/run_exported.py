"""Segment images with an exported file, without mmsegmentation and without mmseg_ext.

    python demo/run_exported.py MODEL.onnx IMAGE|FOLDER OUT [--json] [--min-area N]

The script needs numpy, Pillow and onnxruntime, tifffile for TIFF, and OpenCV for --json and for
color PNGs of 16 bits. To use it elsewhere, copy mmseg_ext/images/values.py next to it.

For each image, OUT gets a label map (`labels/NAME.png`, class indices) and a picture of the classes
over the image (`overlays/NAME.png`), rotated by its EXIF orientation. With --json it gets the
objects of all classes (`objects/NAME.geojson`), as `mmseg-ext image_demo --json` writes them.
Unreadable images are listed at the end, and the exit status is then 1.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
# Next to this script, in a clone, and in an installation.
READERS = (HERE, HERE.parent / "mmseg_ext/images", HERE.parent.parent / "images")
sys.path += [str(folder) for folder in READERS if (folder / "values.py").is_file()]
image_values = importlib.import_module("values")


def find(path: Path) -> list[Path]:
    """Return the image at `path`, or the images in that folder."""
    if path.is_file():
        return [path]
    found = sorted(p for p in path.glob("[!.]*") if p.is_file())
    found = [p for p in found if p.suffix.lower() in image_values.IMAGE_SUFFIXES]
    if not found:
        raise ValueError(f"{path}: {'contains no image' if path.is_dir() else 'does not exist'}")
    return found


def load(path: Path):
    """Return a function from images (1, 3, H, W) to scores (1, classes, H, W), and the metadata."""
    import onnxruntime

    if not path.is_file():
        raise ValueError(f"{path}: does not exist")
    try:
        session = onnxruntime.InferenceSession(path)
        properties = session.get_modelmeta().custom_metadata_map
        metadata = {key: json.loads(value) for key, value in properties.items()}
        metadata = {"channels": 3, "value_range": None, "rgb_bands": [1, 2, 3], **metadata}
        metadata["palette"] = np.array(metadata["palette"], dtype=np.uint8)  # (classes, 3)
    except Exception as error:  # onnxruntime has its own exceptions
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: not an exported segmentor: {reason}") from error
    if metadata.get("stored_values"):
        raise ValueError(f"{path}: takes values as files store them; this script gives 0 to 255")
    return lambda images: session.run(["scores"], {"images": images})[0], metadata


def resize(maps: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize maps (..., H, W) bilinearly, without antialiasing, as OpenCV and PyTorch do."""
    for axis, size in ((-2, height), (-1, width)):
        old = maps.shape[axis]
        position = ((np.arange(size) + 0.5) * old / size - 0.5).clip(0, old - 1)
        first = np.floor(position).astype(int)
        weight = (position - first).astype(np.float32)
        weight = weight[:, None] if axis == -2 else weight
        lower, upper = (maps.take(i, axis) for i in (first, np.minimum(first + 1, old - 1)))
        maps = lower + weight * (upper - lower)
    return maps


def segment(run, metadata: dict, image: np.ndarray) -> np.ndarray:
    """Return class indices (H, W) of an image (H, W, C).

    The image is scaled as in the config's test pipeline. If the file has a fixed size, the image is
    scaled to fit, and the rest is filled with the color that normalizes to zero.
    """
    pixels = image.astype(np.float32).transpose(2, 0, 1)  # (C, H, W)
    original, scale = pixels.shape[1:], metadata["scale"]  # (H, W) and (width, height)
    fixed = None if metadata["dynamic"] else metadata["size"]  # (H, W)
    if scale and not metadata["keep_ratio"]:
        height, width = fixed or scale[::-1]
    else:
        ratio = 1.0
        if scale:  # the limits of the long and the short side
            ratio = min(max(scale) / max(original), min(scale) / min(original))
        if fixed:
            ratio = min(fixed[0] / original[0], fixed[1] / original[1], ratio if scale else np.inf)
        height, width = (max(1, int(old * ratio + 0.5)) for old in original)
    pixels = resize(pixels, height, width)
    if fixed:
        canvas = np.empty((len(pixels), *fixed), dtype=np.float32)
        canvas[:] = np.array(metadata["mean"], dtype=np.float32)[:, None, None]
        canvas[:, :height, :width] = pixels
        pixels = canvas
    scores = run(np.ascontiguousarray(pixels[None]))[0][:, :height, :width]  # (classes, H, W)
    best, labels = np.full(original, -np.inf, dtype=np.float32), np.zeros(original, dtype=np.uint16)
    for index, score in enumerate(scores):  # one class at a time: all would fill the memory
        score = resize(score, *original)
        labels[score > best] = index
        np.maximum(best, score, out=best)
    return labels.astype(np.min_scalar_type(len(scores) - 1))


def objects(labels: np.ndarray, index: int, name: str, min_area: int) -> list[dict]:
    """Return the connected components of a class as GeoJSON features, in pixels."""
    import cv2

    of_class = (labels == index).view(np.uint8)
    _, parts, stats, centers = cv2.connectedComponentsWithStats(of_class, connectivity=4)
    features = []
    for i, (*box, area) in enumerate(stats.tolist()):
        if i == 0 or area < min_area:  # the first one is the rest of the image
            continue
        x, y, width, height = box
        mask = (parts[y : y + height, x : x + width] == i).view(np.uint8)
        # At twice the size, (c + 1) // 2 moves the centers of border pixels to the pixels' edges.
        mask = cv2.resize(mask, (2 * width, 2 * height), interpolation=cv2.INTER_NEAREST)
        found, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        rings = [(ring[:, 0] + 1) // 2 + (x, y) for ring in found]  # points, 2
        rings = [ring[(ring != np.roll(ring, 1, axis=0)).any(1)] for ring in rings]
        rings.sort(key=lambda ring: ring.min(0).tolist())  # the outline, then the holes
        closed = [[*ring, ring[0]] for ring in (points.tolist() for points in rings)]
        centroid = (centers[i] + 0.5).tolist()
        properties = {"class": name, "area": area, "box": box, "centroid": centroid}
        geometry = {"type": "Polygon", "coordinates": closed}
        features.append({"type": "Feature", "properties": properties, "geometry": geometry})
    return features


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--json", action="store_true", help="write the objects as GeoJSON")
    parser.add_argument("--min-area", type=int, default=0, help="of an object, in pixels")
    values = "values of images of more than 8 bits that become black and white"
    parser.add_argument("--value-range", nargs=2, type=float, help=values)
    args = parser.parse_args()
    try:
        run, metadata = load(args.model)
        paths = find(args.images)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    value_range = args.value_range or metadata["value_range"]
    for kind in ("labels", "overlays", *(["objects"] if args.json else [])):
        (args.out / kind).mkdir(parents=True, exist_ok=True)
    broken, written = [], []
    for path in paths:
        try:
            pixels = image_values.read_pixels(path.read_bytes()).upright()
            values = pixels.fit(metadata["channels"], value_range)  # (H, W, C)
        except Exception as error:  # decoders raise many kinds
            broken.append(f"{path}: {error}")
            continue
        if value_range is None and (note := pixels.dark_note()):
            print(f"warning: {path}: {note}", file=sys.stderr)
        labels = segment(run, metadata, values)
        stem = path.name if path.stem in written else path.stem
        written.append(stem)
        Image.fromarray(labels).save(args.out / f"labels/{stem}.png")
        picture = Image.fromarray(values[..., [band - 1 for band in metadata["rgb_bands"]]])
        overlay = Image.blend(picture, Image.fromarray(metadata["palette"][labels]), 0.5)
        overlay.save(args.out / f"overlays/{stem}.png")
        if args.json:
            features = []
            for index, name in enumerate(metadata["classes"]):
                features += objects(labels, index, name, args.min_area)
            content = json.dumps({"type": "FeatureCollection", "features": features})
            (args.out / f"objects/{stem}.geojson").write_text(content, encoding="utf-8")
    print(f"{len(paths) - len(broken)} of {len(paths)} images segmented into {args.out}")
    print("\n".join(broken), file=sys.stderr, end="\n" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
