"""Predict batches of images of different sizes; mmsegmentation accepts only equal sizes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from mmengine.model import BaseModel
from torch import Tensor, nn


def predict_mixed_sizes(model: nn.Module) -> None:
    """Let the `val_step` and `test_step` of a segmentor accept images of different sizes.

    Segmentors with steps of their own stay as they are.
    """
    for name in ("val_step", "test_step"):
        inherited = getattr(type(model), name, None) is getattr(BaseModel, name)
        if inherited:
            setattr(model, name, functools.partial(by_size, getattr(model, name)))


def by_size(step: Callable[[dict], Sequence], data: dict) -> Sequence:
    """Return the predictions of `step` for a batch, computed for each size of images together.

    Args:
        data: from the data loader: for each field a list over the batch, or with `TestTimeAug` a
            list over views of such lists.
    """
    inputs = data["inputs"]
    if isinstance(inputs, Tensor):  # images that are stacked already
        return step(data)
    views = [inputs] if isinstance(inputs[0], Tensor) else inputs
    groups: dict[tuple, list[int]] = {}  # indices of the images with these shapes
    for i, images in enumerate(zip(*views, strict=True)):
        shapes = tuple(image.shape for image in images)
        groups.setdefault(shapes, []).append(i)
    predictions: dict[int, Any] = {}
    for chosen in groups.values():
        part = {field: _selected(values, chosen) for field, values in data.items()}
        predictions.update(zip(chosen, step(part), strict=True))
    return [predictions[i] for i in range(len(predictions))]


def _selected(values: Sequence, chosen: list[int]) -> list:
    """Return a field of the chosen images, from a list or from a list for each view."""
    if isinstance(values[0], list | tuple):
        return [_selected(view, chosen) for view in values]
    return [values[i] for i in chosen]
