"""Test-time augmentation; importing this package registers it in mmseg's MODELS."""

from mmseg_ext.segmentors.streaming_tta import StreamingSegTTAModel

__all__ = ["StreamingSegTTAModel"]
