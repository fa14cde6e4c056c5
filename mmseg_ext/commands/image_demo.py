"""Segment an image, a folder or a video; started again, it does what is missing."""

import argparse
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import cv2
import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.console import Console
from rich.progress import track

from mmseg_ext import register_all_modules
from mmseg_ext.atomic_write import atomic_write
from mmseg_ext.datasets.files import decode, read_bytes
from mmseg_ext.engine.launch import load_settings
from mmseg_ext.errors import LaunchError, UnreadableFileError
from mmseg_ext.inference.predictor import Predictor
from mmseg_ext.inference.shard import Shard

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm")


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    register_all_modules()
    try:
        return _demo(args, Shard.from_environment())
    except (LaunchError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Segment an image, a folder of images or a video. Started by torchrun, the "
        "processes share the images. Started again, it does what is missing in --out.",
    )
    parser.add_argument("input", type=Path, help="image, folder (searched through) or video")
    parser.add_argument("config")
    parser.add_argument("checkpoint", help="checkpoint file, or 'none' for random weights")
    parser.add_argument("--tta", action="store_true", help="test-time augmentation")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="folder of the results")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--opacity", type=float, default=0.5, help="of the classes' colours")
    parser.add_argument("--device", help="by default the process's GPU, else the CPU")
    return parser


def _demo(args: argparse.Namespace, shard: Shard) -> int:
    if not args.input.exists():
        raise ValueError(f"there is no {str(args.input)!r}")
    if not 0 <= args.opacity <= 1:
        raise ValueError(f"--opacity must lie between 0 and 1, not {args.opacity}")
    checkpoint = None if args.checkpoint == "none" else args.checkpoint
    predictor = Predictor(
        load_settings(args.config), checkpoint, args.tta, _device(args.device), args.batch_size
    )
    if args.input.suffix.lower() in VIDEOS:
        return _segment_video(args, predictor) if shard.rank == 0 else 0
    return _segment_images(args, predictor, shard)


def _device(name: str | None) -> str:
    if name is not None:
        return name
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"


def find_images(path: Path, out: Path) -> dict[Path, Path]:
    """The images at `path` and the name of each one's result, which no two share.

    Results of `out`, where that lies in `path`, are not among them.

    Raises:
        ValueError: if there is none.
    """
    if path.is_file():
        return {path: Path(path.stem + ".png")}
    results = [(out / kind).resolve() for kind in ("labels", "overlays")]
    found = sorted(
        p
        for p in path.rglob("*")
        if p.suffix.lower() in IMAGES and not any(r in p.resolve().parents for r in results)
    )
    if not found:
        raise ValueError(f"{str(path)!r} holds no image ({', '.join(IMAGES)})")
    names = [p.relative_to(path).with_suffix(".png") for p in found]
    shared = {name for name, count in Counter(names).items() if count > 1}
    return {
        image: name.with_name(image.name + ".png") if name in shared else name
        for image, name in zip(found, names, strict=True)
    }


def _segment_images(args: argparse.Namespace, predictor: Predictor, shard: Shard) -> int:
    results = find_images(args.input, args.out)
    images = shard.of(list(results))
    weights = _weights(args)
    missing = []
    for path in images:
        made_from = {"image": str(path.resolve()), "weights": weights}
        if not _is_there(args.out / "labels" / results[path], made_from):
            missing.append(path)
    where = "" if shard.count == 1 else f"process {shard.rank} of {shard.count}: "
    predictions = predictor.predict((path, str(path)) for path in missing)
    broken = []
    for path, labels in _progress(predictions, len(missing), shard):
        if isinstance(labels, UnreadableFileError):
            broken.append(str(labels))
            continue
        image = decode(read_bytes(str(path)), str(path), "color", "cv2")[..., ::-1]  # RGB
        overlay = blend(image, predictor.palette[labels], args.opacity)
        _save(Image.fromarray(overlay), args.out / "overlays" / results[path])
        # Last: that the label map is there is what says that the image is done.
        made_from = {"image": str(path.resolve()), "weights": weights}
        _save(Image.fromarray(labels), args.out / "labels" / results[path], made_from)
    done = len(missing) - len(broken)
    there = len(images) - len(missing)
    print(f"{where}{done} images segmented into {args.out}, {there} were there")
    for reason in broken:
        print(f"{where}skipped {reason}", file=sys.stderr)
    return 1 if broken and done + there == 0 else 0


def _progress(items: Iterable, total: int, shard: Shard) -> Iterator:
    """A bar on the error stream, drawn by the first process."""
    if shard.rank:
        return iter(items)
    return track(items, "segmenting", total, console=Console(stderr=True))


def blend(image: np.ndarray, colours: np.ndarray, opacity: float) -> np.ndarray:
    """`colours` over `image`, both (H, W, 3) uint8."""
    return (image * (1 - opacity) + colours * opacity).round().astype(np.uint8)


def _save(picture: Image.Image, path: Path, said: Mapping[str, str] = MappingProxyType({})) -> None:
    """A PNG, whole, which holds the texts `said`."""
    texts = PngInfo()
    for key, text in said.items():
        texts.add_itxt(key, text)
    with atomic_write(path) as part:
        picture.save(part, format="PNG", pnginfo=texts)


def _weights(args: argparse.Namespace) -> str:
    """What decides the label maps beside the images, for the results to say."""
    digest = "random"
    if args.checkpoint != "none":
        digest = hashlib.sha256(Path(args.checkpoint).read_bytes()).hexdigest()[:16]
    return f"{digest} {Path(args.config).name}{' tta' if args.tta else ''}"


def _is_there(result: Path, made_from: dict[str, str]) -> bool:
    """Whether this result is there already.

    Raises:
        ValueError: where another image's or other weights' result has its name.
    """
    if not result.exists():
        return False
    with Image.open(result) as picture:
        said = {key: getattr(picture, "text", {}).get(key) for key in made_from}
    for key, value in made_from.items():
        if said[key] != value:
            other = f"other {key} ({said[key]})" if said[key] else f"{key} that it does not name"
            raise ValueError(
                f"{result} is there already, made from {other}: choose another folder with --out"
            )
    return True


def _segment_video(args: argparse.Namespace, predictor: Predictor) -> int:
    """One process's: frames follow each other in one file."""
    video = cv2.VideoCapture(str(args.input))
    size = tuple(int(video.get(p)) for p in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    if not video.isOpened() or min(size) < 1:
        raise ValueError(f"{str(args.input)!r} cannot be read as a video")
    path = args.out / f"{args.input.stem}.mp4"
    if path.resolve() == args.input.resolve():
        raise ValueError(f"{path} is the input: choose another folder with --out")
    total = max(int(video.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
    with atomic_write(path) as part:
        rate = video.get(cv2.CAP_PROP_FPS) or 25.0
        writer = cv2.VideoWriter(str(part), cv2.VideoWriter_fourcc(*"mp4v"), rate, size)
        count = 0
        for frames in track(
            _batches(_frames(video), predictor.batch_size),
            "segmenting",
            -(-total // predictor.batch_size),
            console=Console(stderr=True),
        ):
            for i, labels in predictor.predict(enumerate(frames)):
                colours = predictor.palette[labels][..., ::-1]  # BGR, as the frame
                writer.write(blend(frames[i], colours, args.opacity))
                count += 1
        writer.release()
        video.release()
        _require_frames(part, path, count)
    print(f"{count} frames segmented into {path}")
    return 0


def _require_frames(part: Path, path: Path, count: int) -> None:
    """OpenCV says nothing of a write that failed: the file must hold what was written."""
    video = cv2.VideoCapture(str(part))
    found = int(video.get(cv2.CAP_PROP_FRAME_COUNT)) if video.isOpened() else 0
    video.release()
    if not count or found != count:
        raise ValueError(
            f"{path} cannot be written: {found} of {count} frames arrived (a full disk?)"
        )


def _frames(video: cv2.VideoCapture) -> Iterator[np.ndarray]:
    while True:
        there, frame = video.read()
        if not there:
            return
        yield frame


def _batches(items: Iterator, size: int) -> Iterator[list]:
    while batch := list(islice(items, size)):
        yield batch
