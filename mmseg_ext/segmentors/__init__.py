"""Segmentors with class maps in strips, test-time augmentation, and a neck, in `MODELS`."""

from mmseg_ext.segmentors.band_preprocessor import BandDataPreProcessor
from mmseg_ext.segmentors.stem_fpn import StemFPN
from mmseg_ext.segmentors.streaming_tta import StreamingSegTTAModel
from mmseg_ext.segmentors.strip_encoder_decoder import StripEncoderDecoder

__all__ = ["BandDataPreProcessor", "StemFPN", "StreamingSegTTAModel", "StripEncoderDecoder"]
