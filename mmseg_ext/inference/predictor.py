"""A segmentor as a function of images.

`Predictor` reads an image, cuts it into tiles if asked to, and runs each tile through the test
pipeline of the model's config, which scales it like the image. Tiles of equal sizes run together in
a batch, also for several images. Each prediction is written into the arrays of its image's
`Segmentation`, which is returned when its last tile is filled.
"""

import contextlib
import operator
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

import cv2
import numpy as np
import torch
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmseg.registry import TRANSFORMS
from PIL import Image
from torch import Tensor, nn

from mmseg_ext.datasets.image_loading import CheckedLoadImage
from mmseg_ext.engine.amp import bfloat16_autocast
from mmseg_ext.engine.config import input_channels, type_name
from mmseg_ext.engine.test_time_views import merging_model
from mmseg_ext.errors import UnreadableFileError
from mmseg_ext.images.pictures import to_picture
from mmseg_ext.images.seen import usual_overlap, window_spans
from mmseg_ext.images.values import Photo, ValueRange, declared, picture_pixels
from mmseg_ext.inference.fast_copy import fast_copy
from mmseg_ext.inference.models import get_model, with_background
from mmseg_ext.inference.scale import read_seen, resized_as, tested_dataset
from mmseg_ext.inference.segmentation import Segmentation
from mmseg_ext.segmentors import StreamingSegTTAModel
from mmseg_ext.segmentors.mixed_sizes import by_size
from mmseg_ext.segmentors.score_maps import DeferredLogits, Merge
from mmseg_ext.terminal import progress

T = TypeVar("T")
ImageLike = str | Path | bytes | BinaryIO | Image.Image | np.ndarray | Tensor | Photo


class Predictor:
    """Segmentations of images, by the test pipeline of the model's config.

    Args:
        model: a segmentor of `get_model`, or of mmsegmentation's `init_model`; or an argument of
            `get_model`: a name, the path of a config, or a config. A name without
            `weights` has this project's.
        weights_or_tta: `weights`, as in `Predictor("config.py", "iter_600.pth")`, or `tta`.
        tta: test-time augmentation by the config's `tta_pipeline`, merged as by its `tta_model`.
        weights, device: of `get_model`, if `model` is not a segmentor.
        batch_size: images, or tiles, that run together if the pipeline gives them one size.
        scores: add `scores` to the results; with 150 classes they are 300 bytes per pixel.
        confidence: add `confidence` to the results.
        tile: cut images into squares of this side, so the network's memory does not grow with the
            image. The network sees them at the scale of the complete image, or of the training if
            the config has `image_sides` and the image is longer or shorter. A terminal shows a
            progress bar.
        overlap: pixels that neighboring tiles share, by default an eighth of `tile`. Each tile
            fills the image up to the middle of the overlap.
        amp: compute in bfloat16.
        fast: predict with a copy of the model that has its batch norms folded into convolutions,
            and CUDA graphs of up to four sizes that repeat. Scores change by about 1e-6 of the
            largest. Later changes of `model` have no effect.
        urls: accept paths with `://`, which mmengine's file clients download.
        value_range: the values (low, high) of images of more than 8 bits that become 0 and 255, or
            such a pair for each band. By default as in the config's pipeline, or else 0 and 65535.

    Raises:
        ValueError: for `amp` on a device without bfloat16, for `fast` with another segmentor than
            `StripEncoderDecoder`, for an overlap or a value range that does not fit, for `tta`
            without a `tta_pipeline`, for `weights` or `device` with a segmentor, for two weights,
            and as `get_model`.
    """

    def __init__(
        self,
        model: nn.Module | str | Path | Config,
        weights_or_tta: bool | str | Path | None = None,
        *,
        tta: bool = False,
        weights: str | Path | None = None,
        device: str | torch.device | None = None,
        batch_size: int = 1,
        scores: bool = False,
        confidence: bool = False,
        tile: int | None = None,
        overlap: int | None = None,
        amp: bool = False,
        fast: bool = False,
        urls: bool = False,
        value_range: ValueRange | None = None,
    ):
        if weights_or_tta is None or isinstance(weights_or_tta, bool):
            tta = tta or bool(weights_or_tta)
        elif weights is not None:
            raise ValueError(f"weights: {weights_or_tta} and {weights}; pass one of them")
        else:
            weights = weights_or_tta
        if isinstance(model, nn.Module) and (weights is not None or device is not None):
            raise ValueError("weights, device: the model is built; pass its name or its config")
        self.tile, self.overlap, self.batch_size = _checked_sizes(tile, overlap, batch_size)
        self.urls, self.scores, self.confidence = urls, scores, confidence

        # The network.
        network: Any = model
        if not isinstance(model, nn.Module):
            network = get_model(model, weights is None, weights, device or "cpu")
        config, meta = network.cfg, with_background(network, network.dataset_meta)
        self.classes: tuple[str, ...] = tuple(meta["classes"])
        self.palette = np.array(meta["palette"], dtype=np.uint8)  # (classes, 3), RGB
        if fast:
            network = fast_copy(network)
        self.model: Any = network
        self._merge: Any = "probs" if getattr(network, "out_channels", 0) == 1 else "logits"
        if tta:
            merging = merging_model(config)
            self._merge = merging.get("merge", "probs")
            swapped = merging.get("swap_seg_labels", ())
            self.model = StreamingSegTTAModel(network, self._merge, swap_seg_labels=swapped)
        self.model.eval()
        self._autocast = bfloat16_autocast(next(network.parameters()).device, enabled=amp)

        # How it sees images, and what a result needs of the config.
        self.seen = read_seen(config)
        self._is_told = False  # that an image is at another scale
        self.channels = input_channels(config.model)
        self._rgb_bands = config.get("rgb_bands")
        # Pixels that an object of a class needs, by the objects of the training labels.
        self.min_area: dict[str, float] = dict(config.get("min_area") or {})

        pipeline = tested_dataset(config)["pipeline"]
        if tta:
            pipeline = config.get("tta_pipeline")
            if not pipeline:
                todo = "add it, or predict without tta"
                raise ValueError(f"tta: the config has no tta_pipeline; {todo}")
        self.load: Any = _loader(pipeline[0], self.channels, value_range)
        self._settings = _without_labels(pipeline[1:])
        self._transform: Any = Compose(_without_labels(self._settings))  # which changes its list

    @overload
    def __call__(self, images: ImageLike) -> Segmentation: ...

    @overload
    def __call__(self, images: Sequence[ImageLike]) -> list[Segmentation]: ...

    @overload
    def __call__(self, images: Iterable[ImageLike]) -> Iterator[Segmentation]: ...

    def __call__(self, images: Any) -> Segmentation | list[Segmentation] | Iterator[Segmentation]:
        """Return the segmentation of an image, or a list of them for a sequence of images.

        A thread reads the next batch of a sequence during the prediction of the one before. For any
        other iterable of images, such as a generator, the result is an iterator in the same order,
        which reads `batch_size` images ahead. An image is

        - a path, the bytes of a file, or a binary file;
        - a PIL image;
        - an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) in the order RGB, as of Pillow. OpenCV
          reads BGR: pass `image[..., ::-1]`;
        - a tensor (H, W), (1, H, W), (3, H, W) or (4, H, W), in the order RGB;
        - for a network of n channels, an array (H, W, n) or a tensor (n, H, W);
        - a page of a stack: `mmseg_ext.images.values.read_page(path, number)`.

        A network of three channels gets gray repeated and no alpha. The values are of uint8, of
        uint16, or floats of 0 to 1; with a value range, of any type. Photos are rotated by their
        EXIF orientation.

        Raises:
            UnreadableFileError: for a file that is missing, truncated or no image, or does not fit.
            ValueError: for an array that does not fit, for anything else, and for a URL.
        """
        is_one = isinstance(images, ImageLike) or hasattr(images, "read")
        if not is_one and not isinstance(images, Iterable):
            raise ValueError(self._refusal(type(images).__name__))
        given: Any = [images] if is_one else images
        tiles = self._tiles(given)
        batches = iter(lambda: list(islice(tiles, self.batch_size)), [])
        if is_one:
            (result,) = self._results(batches)
            return result
        if not isinstance(images, Sequence):
            return self._results(batches)
        with contextlib.closing(one_ahead(batches)) as batches:
            return list(self._results(batches))

    def prepare(self, image: ImageLike) -> dict:
        """Return a sample for the model's data preprocessor."""
        data = self._read(image)
        with _resizing(data):
            return self._transform(data)

    def _read(self, image: Any) -> dict:
        """Return an `ImageLike` as the pipeline's first transform does."""
        if isinstance(image, str | Path):
            if "://" in str(image) and not self.urls:
                raise ValueError(f"{image}: is a URL; use Predictor(model, urls=True) to load it")
            return self.load({"img_path": str(image)})
        if hasattr(image, "read"):
            image = image.read()
        if isinstance(image, bytes):
            return self.load({"img_path": "image", "content": image})
        image = self._photo(image)
        try:
            return self.load({"img_path": image.name, "photo": image})
        except UnreadableFileError as error:
            raise ValueError(str(error)) from error

    def _photo(self, image: Any) -> Photo:
        """Return the photo of a PIL image, a tensor or an array.

        Raises:
            ValueError: if it does not fit the network, and for anything else.
        """
        if isinstance(image, Image.Image):
            image = picture_pixels(image)
        elif isinstance(image, Tensor):
            image = image.detach().cpu()
            if image.ndim == 3:
                image = image.movedim(0, -1)  # (H, W, C)
            # NumPy has no bfloat16.
            image = (image.float() if image.is_floating_point() else image).numpy()
        if isinstance(image, np.ndarray):
            count = 0  # of another number of dimensions, which fits no network
            if image.ndim in (2, 3):
                count = image.shape[2] if image.ndim == 3 else 1
            fits = (self.channels, 1, 4) if self.channels == 3 else (self.channels,)
            if image.size == 0 or count not in fits:
                raise ValueError(self._refusal(f"shape {image.shape}"))
            try:
                image = declared(image, alpha=(3,) if count == 4 else ())
            except ValueError as error:
                raise ValueError(f"image: {error}") from error
        if not isinstance(image, Photo):
            raise ValueError(self._refusal(type(image).__name__))
        if image.values.size == 0:
            raise ValueError(self._refusal(f"shape {image.values.shape}"))
        return image

    def _refusal(self, given: str) -> str:
        channels = self.channels
        return (
            f"image: {given}; pass a path, the bytes of a file, a PIL image, an array (H, W, "
            f"{channels}) or a tensor ({channels}, H, W), of uint8 or floats of 0 to 1"
        )

    def _tiles(self, images: Iterable[ImageLike]) -> Iterator["_Tile"]:
        """Yield the tiles of each image; without `tile` an image is one."""
        for image in images:
            data = self._read(image)
            pixels = data["img"]
            size = pixels.shape[:2]
            transform: Any = self._transform
            if self.tile is not None:  # each part is scaled as its image
                with _resizing(data):
                    channels = np.atleast_3d(pixels).shape[2]
                    settings = resized_as(self._settings, *self.seen.nearest(*size), channels)
                    transform = Compose(settings)
            axes = (tile_spans(length, self.tile or length, self.overlap) for length in size)
            windows = list(product(*axes))
            result = None
            for i, (of_rows, of_columns) in enumerate(
                progress(windows, "predicting tiles", len(windows)), 1
            ):
                (rows, kept_rows), (columns, kept_columns) = of_rows, of_columns
                part = np.ascontiguousarray(pixels[rows, columns])
                shape = {"img_shape": part.shape[:2], "ori_shape": part.shape[:2]}
                with _resizing(data):
                    sample = transform({**data, **shape, "img": part})
                if result is None:
                    inputs = sample["inputs"]
                    views = inputs if isinstance(inputs, list) else [inputs]
                    # Width of the network's input per width of the image.
                    factors = [view.shape[-1] / part.shape[1] for view in views]
                    result = self._empty_result(data, factors)
                corner, kept = (rows.start, columns.start), (kept_rows, kept_columns)
                yield _Tile(sample, corner, kept, result, last=i == len(windows))

    def _empty_result(self, data: dict, factors: Sequence[float]) -> Segmentation:
        """Return the result for an image, whose arrays tiles fill; warn once of another scale.

        Args:
            factors: width of the network's input per width of the image, for each view.
        """
        pixels = data["img"]
        size = pixels.shape[:2]
        # Tiles are seen as the training images, unless a test-time augmentation changes it.
        if not self._is_told and (self.tile is None or len(factors) > 1):
            height, width = size if self.tile is None else self.seen.nearest(*size)
            high = (self.seen.image_sides or (0, 0))[1]
            todo = f"use --tile {high}, or Predictor(tile={high})"
            if note := self.seen.note(height, width, todo, factors):
                self._is_told = True
                warnings.warn(f"{data['img_path']}: {note}", stacklevel=3)
        return Segmentation(
            np.empty(size, np.min_scalar_type(len(self.classes) - 1)),
            self.classes,
            self.palette,
            to_picture(pixels, self._rgb_bands),
            np.empty((len(self.classes), *size), np.float16) if self.scores else None,
            np.empty(size, np.float16) if self.confidence else None,
            1 / factors[0],
        )

    def _results(self, batches: Iterable[list["_Tile"]]) -> Iterator[Segmentation]:
        """Predict batches of tiles, and yield the result of each image when it is complete."""
        for batch in batches:
            data = pseudo_collate([tile.sample for tile in batch])
            with torch.no_grad(), self._autocast:  # mmseg's test_step computes gradients
                predictions = by_size(self.model.test_step, data)
            for tile, prediction in zip(batch, predictions, strict=True):
                tile.fill(prediction, self._merge)
                if tile.last:
                    yield tile.result


@dataclass(frozen=True)
class _Tile:
    """A part of an image, from the rows and columns `corner` on, as a sample for the network.

    Its prediction fills the rows and columns `kept` of `result`.
    """

    sample: dict
    corner: tuple[int, int]
    kept: tuple[slice, slice]
    result: Segmentation
    last: bool

    def fill(self, prediction: Any, merge: Merge) -> None:
        """Write the labels of a prediction, and its scores if the result has them.

        With `merge` 'probs' its `seg_logits` are probabilities, otherwise a sum of logits.
        """
        top, left = self.corner
        rows, columns = self.kept
        result = self.result
        across = slice(columns.start - left, columns.stop - left)
        labels = prediction.pred_sem_seg.data[0, rows.start - top : rows.stop - top, across]
        if result.labels.dtype == np.uint8:
            labels = labels.to(torch.uint8)  # an eighth of the bytes to copy from a GPU
        result.labels[rows, columns] = labels.cpu().numpy()
        if result.scores is None and result.confidence is None:
            return
        inputs = self.sample["inputs"]
        views = len(inputs) if isinstance(inputs, list) else 1
        logits = prediction.seg_logits
        if isinstance(logits, DeferredLogits):
            strips = logits.strips()
        else:
            strips = [(0, logits.data.permute(1, 2, 0))]
        for start, strip in strips:  # from top to bottom, (rows, W, classes)
            if merge == "logits":
                strip = (strip / views).softmax(2)
            elif strip.shape[2] == 1:  # of the foreground
                strip = torch.cat([1 - strip, strip], 2)
            strip_top = top + start
            first = max(strip_top, rows.start)
            stop = min(strip_top + len(strip), rows.stop)
            here = slice(first, max(first, stop))
            part = strip[here.start - strip_top : here.stop - strip_top, across].cpu().numpy()
            if result.scores is not None:
                result.scores[:, here, columns] = part.transpose(2, 0, 1)
            if result.confidence is not None:
                result.confidence[here, columns] = part.max(2)


def _checked_sizes(tile: Any, overlap: Any, batch_size: Any) -> tuple[int | None, int, int]:
    """Return the arguments of `Predictor` with the default overlap.

    Raises:
        ValueError: for a number that is no integer or not possible.
    """
    sizes = dict(tile=tile, overlap=overlap, batch_size=batch_size)
    for name, value in sizes.items():
        try:
            sizes[name] = None if value is None else operator.index(value)
        except TypeError as error:
            raise ValueError(f"{name}={value!r}: must be an integer") from error
    tile, overlap, batch_size = sizes.values()
    if overlap is None:
        overlap = usual_overlap(tile or 0)
    if tile is not None and tile < 1:
        raise ValueError(f"tile={tile}: must be at least 1; for complete images pass no tile")
    if tile is not None and not 0 <= overlap < tile:
        raise ValueError(f"overlap={overlap}: must be at least 0 and smaller than tile={tile}")
    if batch_size is None or batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
    return tile, overlap, batch_size


def _loader(first: dict, channels: int, value_range: ValueRange | None) -> Any:
    """Return the first transform of a pipeline, which loads the image.

    Raises:
        ValueError: for a range that does not fit, or that the transform does not use.
    """
    kind: Any = TRANSFORMS.get(type_name(first))
    if kind is not None and issubclass(kind, LoadImageFromFile):  # else of another package
        first = {"channels": channels, **first, "type": CheckedLoadImage}
        if value_range is not None:
            first["value_range"] = value_range
    elif value_range is not None:
        raise ValueError(f"value_range: is not used by {type_name(first)}, the config's loader")
    return TRANSFORMS.build(first)


def tile_spans(length: int, tile: int, overlap: int) -> list[tuple[slice, slice]]:
    """Return the tiles of an axis, each with the part of the result that it fills.

    It fills the result up to the middle of what it shares with its neighbors.
    """
    spans = window_spans(length, tile, tile - overlap)
    middles = [(start + stop) // 2 for (_, stop), (start, _) in pairwise(spans)]
    filled = pairwise([0, *middles, length])
    return [(slice(*seen), slice(*kept)) for seen, kept in zip(spans, filled, strict=True)]


def one_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items of an iterator, while a thread computes the next one.

    The thread ends with this generator. An error of the iterator is raised in the item's place.
    """
    end: Any = object()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item


@contextlib.contextmanager
def _resizing(data: dict) -> Iterator[None]:
    """Name the image that the test pipeline cannot resize."""
    height, width = data["img"].shape[:2]
    try:
        yield
    except cv2.error as error:  # a side of zero pixels
        raise ValueError(
            f"{data['img_path']}: the test pipeline cannot resize {width}x{height} pixels; "
            "pad the image"
        ) from error


def _without_labels(pipeline: list[dict]) -> list[dict]:
    """Return the transforms that load no label map, also inside test-time augmentation."""
    kept = []
    for transform in pipeline:
        name = type_name(transform)
        if name.endswith("LoadAnnotations"):
            continue
        if name == "TestTimeAug":
            choices = [_without_labels(choice) for choice in transform["transforms"]]
            transform = {**transform, "transforms": [choice for choice in choices if choice]}
        kept.append(transform)
    return kept
