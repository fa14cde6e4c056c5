"""The checked IoU metric, registered with mmseg on import."""

from mmseg_ext.evaluation.checked_iou_metric import CheckedIoUMetric

__all__ = ["CheckedIoUMetric"]
