"""A config and a checkpoint as a function from image files or arrays to label maps."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model.utils import revert_sync_batchnorm
from mmseg.apis import init_model
from mmseg.registry import DATASETS, MODELS

from mmseg_ext.checkpoint.reading import read_checkpoint, unwrap_state_dict
from mmseg_ext.datasets.files import UnreadableFileError

_LOADERS = ("LoadImageFromFile", "CheckedLoadImage")


class Predictor:
    """Label maps (H, W) uint8 of images, in batches of equal shape.

    Weights are read without running code. `classes` and `palette` are the checkpoint's where it
    names them, else those of the config's test dataset.

    Args:
        config: a config of this package or of mmsegmentation.
        checkpoint: its weights; None leaves them random.
        tta: test-time augmentation by the config's `tta_pipeline` and `tta_model`.
        device: where the model runs.
        batch_size: images in a forward at most.

    Raises:
        ValueError: for `tta` where the config has no `tta_pipeline`, a batch size below one, or a
            pipeline that does not start by loading an image.
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
        meta = DATASETS.get(config.test_dataloader.dataset.type).METAINFO
        pipeline = config.tta_pipeline if tta else config.test_dataloader.dataset.pipeline
        model = init_model(config, None, device="cpu")
        if checkpoint is not None:
            content = read_checkpoint(checkpoint)
            model.load_state_dict(unwrap_state_dict(content, str(checkpoint)), strict=True)
            saved = content.get("meta")
            meta = (saved.get("dataset_meta") if isinstance(saved, dict) else None) or meta
        self.classes = tuple(meta["classes"])
        self.palette = np.array(meta["palette"], dtype=np.uint8)  # (classes, 3), RGB
        if tta:
            settings = config.get("tta_model") or {"type": "StreamingSegTTAModel"}
            model = MODELS.build({**settings, "module": model})
        self.model = revert_sync_batchnorm(model).to(device).eval()
        self._from_file, self._from_array = _pipelines(pipeline)

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


def _pipelines(pipeline: list[dict]) -> tuple[Compose, Compose]:
    """The pipeline from a path, whose loader names what it cannot read, and from an array."""
    first, *rest = pipeline
    if first["type"] not in _LOADERS:
        raise ValueError(f"the test pipeline starts with {first['type']!r}, not {_LOADERS}")
    rest = [_without_labels(transform) for transform in rest]
    rest = [transform for transform in rest if transform is not None]
    return (
        Compose([{**first, "type": "CheckedLoadImage"}, *rest]),
        Compose([{"type": "LoadImageFromNDArray"}, *rest]),
    )


def _without_labels(transform: dict) -> dict | None:
    """`transform` unless it loads label maps; inside test-time augmentation, too."""
    if transform["type"].endswith("LoadAnnotations"):
        return None
    if transform["type"] != "TestTimeAug":
        return transform
    choices = [[_without_labels(t) for t in choice] for choice in transform["transforms"]]
    kept = [[t for t in choice if t is not None] for choice in choices]
    return {**transform, "transforms": [choice for choice in kept if choice]}


def _shape(data: dict) -> tuple[int, ...]:
    inputs = data["inputs"]
    return tuple((inputs[0] if isinstance(inputs, list) else inputs).shape)
