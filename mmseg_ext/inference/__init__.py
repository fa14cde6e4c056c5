"""Predictions for images, folders and videos."""

from mmseg_ext.inference.predictor import Predictor
from mmseg_ext.inference.shard import Shard

__all__ = ["Predictor", "Shard"]
