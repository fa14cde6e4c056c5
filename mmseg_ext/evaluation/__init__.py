"""The metrics of pixels, boundaries and objects, registered with mmseg on import."""

from mmseg_ext.evaluation.boundary_metric import BoundaryMetric
from mmseg_ext.evaluation.checked_iou_metric import CheckedIoUMetric
from mmseg_ext.evaluation.object_metric import ObjectMetric

__all__ = ["BoundaryMetric", "CheckedIoUMetric", "ObjectMetric"]
