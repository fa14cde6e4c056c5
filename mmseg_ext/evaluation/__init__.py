"""The checked IoU metric and the metric of objects, registered with mmseg on import."""

from mmseg_ext.evaluation.checked_iou_metric import CheckedIoUMetric
from mmseg_ext.evaluation.object_metric import ObjectMetric

__all__ = ["CheckedIoUMetric", "ObjectMetric"]
