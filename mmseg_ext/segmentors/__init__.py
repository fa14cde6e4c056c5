"""Class maps by strips, and test-time augmentation; importing this registers them in MODELS."""

from mmseg_ext.segmentors.streaming_tta import StreamingSegTTAModel
from mmseg_ext.segmentors.strip_encoder_decoder import StripEncoderDecoder

__all__ = ["StreamingSegTTAModel", "StripEncoderDecoder"]
