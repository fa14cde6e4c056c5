"""A segmentor as a function of images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.dataset import Compose, pseudo_collate
from mmseg.datasets.transforms import LoadImageFromNDArray
from mmseg.registry import MODELS
from PIL import Image, ImageOps
from torch import nn

from mmseg_ext.datasets.metainfo import unwrapped
from mmseg_ext.inference.legend import with_legend
from mmseg_ext.inference.objects import SegmentedObject, find_objects

ImageLike = str | Path | Image.Image | np.ndarray


@dataclass(frozen=True)
class Segmentation:
    """The labels of an image.

    Attributes:
        labels: class indices (H, W), in the smallest unsigned type that has room for all classes.
        classes: names of the classes.
        palette: RGB colors (classes, 3), uint8.
        image: the segmented image, RGB (H, W, 3), uint8.
    """

    labels: np.ndarray
    classes: tuple[str, ...]
    palette: np.ndarray
    image: np.ndarray

    def overlay(self, opacity: float = 0.5, legend: bool = True) -> Image.Image:
        """Return the image under the colors of its labels, above a legend with their shares."""
        colors = Image.fromarray(self.palette[self.labels])
        blend = Image.blend(Image.fromarray(self.image), colors, opacity)
        return with_legend(blend, self.labels, self.classes, self.palette) if legend else blend

    def objects(self, name: str, min_area: int = 0) -> list[SegmentedObject]:
        """Return the connected components of a class with at least `min_area` pixels.

        Raises:
            ValueError: if the model has no class `name`.
        """
        if name not in self.classes:
            raise ValueError(f"objects: no class {name!r}; use one of {', '.join(self.classes)}")
        return find_objects(self.labels, self.classes.index(name), name, min_area)


class Predictor:
    """Segmentations of images, by the test pipeline of the model's config.

    Args:
        model: a segmentor of `get_model`, or of mmsegmentation's `init_model`.
        tta: test-time augmentation by the config's `tta_pipeline` and `tta_model`.
    """

    def __init__(self, model: nn.Module, tta: bool = False):
        self.classes = tuple(model.dataset_meta["classes"])
        self.palette = np.array(model.dataset_meta["palette"], dtype=np.uint8)  # (classes, 3), RGB
        config, self.model = model.cfg, model
        pipeline = unwrapped(config.test_dataloader.dataset)["pipeline"]
        if tta:
            pipeline = config.tta_pipeline
            settings = config.get("tta_model") or {"type": "StreamingSegTTAModel"}
            self.model = MODELS.build({**settings, "module": model}).eval()
        self._load = Compose([{**pipeline[0], "type": "CheckedLoadImage"}])
        self._transform = Compose(_without_labels(pipeline[1:]))

    def __call__(
        self, images: ImageLike | Sequence[ImageLike]
    ) -> Segmentation | list[Segmentation]:
        """Return the segmentation of an image, or a list of them for a list of images.

        An image is a path, a PIL image, or an RGB array (H, W, 3) of uint8. Photos are rotated as
        their EXIF orientation says.

        Raises:
            UnreadableFileError: for a file that is missing, truncated or no image.
            ValueError: for an array of another shape or type.
        """
        if isinstance(images, list | tuple):
            return [self(image) for image in images]
        packed, rgb = self.prepare(images)
        (sample,) = self.model.test_step(pseudo_collate([packed]))
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        smallest = np.min_scalar_type(len(self.classes) - 1)
        return Segmentation(labels.astype(smallest), self.classes, self.palette, rgb)

    def prepare(self, image: ImageLike) -> tuple[dict, np.ndarray]:
        """Return a sample for the model's data preprocessor, and the image as RGB (H, W, 3)."""
        if isinstance(image, str | Path):
            data = self._load({"img_path": str(image)})
        else:
            data = LoadImageFromNDArray()({"img": _bgr(image)})
        rgb = _rgb(data["img"])  # before the transforms replace the image
        return self._transform(data), rgb


def _bgr(image: Image.Image | np.ndarray) -> np.ndarray:
    """Return the pixels as mmcv loads them from a file."""
    if isinstance(image, Image.Image):
        image = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(
            f"image: {image.dtype} of shape {image.shape}; pass RGB values (H, W, 3) of uint8"
        )
    return np.ascontiguousarray(image[..., ::-1])


def _rgb(pixels: np.ndarray) -> np.ndarray:
    """Return RGB (H, W, 3) of uint8 for a loader's BGR, gray or multispectral image."""
    bands = np.atleast_3d(pixels)
    bgr = bands[..., :3] if bands.shape[2] >= 3 else bands[..., [0, 0, 0]]
    return np.ascontiguousarray(bgr[..., ::-1].clip(0, 255).astype(np.uint8))


def _without_labels(pipeline: list[dict]) -> list[dict]:
    """Return the transforms that load no label map, also inside test-time augmentation."""
    kept = [t for t in pipeline if not t["type"].endswith("LoadAnnotations")]
    for i, transform in enumerate(kept):
        if transform["type"] == "TestTimeAug":
            choices = map(_without_labels, transform["transforms"])
            kept[i] = {**transform, "transforms": [choice for choice in choices if choice]}
    return kept
