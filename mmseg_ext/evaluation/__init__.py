"""Scoring; importing this package registers the checked metric with mmseg."""

from mmseg_ext.evaluation.checked_iou_metric import CheckedIoUMetric

__all__ = ["CheckedIoUMetric"]
