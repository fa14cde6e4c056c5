"""A config and a checkpoint as a function from image files or arrays to label maps."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.registry import MODELS

from mmseg_ext.datasets.metainfo import unwrapped
from mmseg_ext.engine.load_trained import load_trained
from mmseg_ext.errors import UnreadableFileError

_LOADERS = ("LoadImageFromFile", "CheckedLoadImage")


class Predictor:
    """Label maps (H, W) uint8 of images, in batches of equal shape.

    `classes` and `palette` are those of `load_trained`.

    Args:
        config: a config of this package or of mmsegmentation.
        checkpoint: its weights; None leaves them random.
        tta: test-time augmentation by the config's `tta_pipeline` and `tta_model`.
        device: where the model runs.
        batch_size: images in a forward at most.

    Raises:
        ValueError: for `tta` where the config has no `tta_pipeline`, a batch size below one, or a
            pipeline that does not start by loading an image; and as `load_trained` does.
    """

    def __init__(
        self,
        config: Config,
        checkpoint: str | Path | None,
        tta: bool = False,
        device: str = "cpu",
        batch_size: int = 1,
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, not {batch_size}")
        if tta and "tta_pipeline" not in config:
            raise ValueError("tta: the config has no tta_pipeline")
        self.batch_size = batch_size
        dataset = unwrapped(config.test_dataloader.dataset)
        pipeline = config.tta_pipeline if tta else dataset["pipeline"]
        model, meta = load_trained(config, checkpoint)
        self.classes = tuple(meta["classes"])
        self.palette = np.array(meta["palette"], dtype=np.uint8)  # (classes, 3), RGB
        if tta:
            settings = config.get("tta_model") or {"type": "StreamingSegTTAModel"}
            model = MODELS.build({**settings, "module": model})
        self.model = revert_sync_batchnorm(model).to(device).eval()
        self._from_file = Compose(image_pipeline(pipeline))
        self._from_array = Compose(image_pipeline(pipeline, "LoadImageFromNDArray"))

    def predict(
        self, items: Iterable[tuple[object, str | np.ndarray]]
    ) -> Iterator[tuple[object, np.ndarray | UnreadableFileError]]:
        """(name, label map) for each (name, path or BGR array (H, W, 3)), in order of completion.

        An image that cannot be read gives its error in the place of a map. Images of one shape
        share a batch; at most four batches of images wait for theirs to fill.
        """
        waiting: dict[tuple[int, ...], list] = {}
        for name, image in items:
            try:
                data = self._load(image)
            except UnreadableFileError as error:
                yield name, error
                continue
            group = waiting.setdefault(_shape(data), [])
            group.append((name, data))
            if len(group) == self.batch_size:
                yield from self._forward(waiting.pop(_shape(data)))
            elif sum(map(len, waiting.values())) >= 4 * self.batch_size:
                yield from self._forward(waiting.pop(next(iter(waiting))))
        for group in waiting.values():
            yield from self._forward(group)

    def _load(self, image: str | np.ndarray) -> dict:
        if isinstance(image, np.ndarray):
            return self._from_array({"img": image})
        return self._from_file({"img_path": str(image)})

    def _forward(self, group: list) -> Iterator[tuple[object, np.ndarray]]:
        samples = self.model.test_step(pseudo_collate([data for _, data in group]))
        for (name, _), sample in zip(group, samples, strict=True):
            yield name, sample.pred_sem_seg.data[0].cpu().numpy().astype(np.uint8)


def image_pipeline(pipeline: list[dict], loader: str = "CheckedLoadImage") -> list[dict]:
    """A test pipeline that starts with `loader` in its loader's place and loads no label map.

    Raises:
        ValueError: for one that does not start by loading an image.
    """
    first, *rest = pipeline
    if first["type"] not in _LOADERS:
        raise ValueError(f"the test pipeline starts with {first['type']!r}, not {_LOADERS}")
    options = {} if loader == "LoadImageFromNDArray" else first
    return [{**options, "type": loader}, *_without_labels(rest)]


def _without_labels(pipeline: list[dict]) -> list[dict]:
    """The transforms that load no label map; inside test-time augmentation, too."""
    kept = [t for t in pipeline if not t["type"].endswith("LoadAnnotations")]
    for i, transform in enumerate(kept):
        if transform["type"] == "TestTimeAug":
            choices = map(_without_labels, transform["transforms"])
            kept[i] = {**transform, "transforms": [choice for choice in choices if choice]}
    return kept


def _shape(data: dict) -> tuple[int, ...]:
    inputs = data["inputs"]
    return tuple((inputs[0] if isinstance(inputs, list) else inputs).shape)
