"""Metrics: mmseg's IoU with its inputs checked, and the demo's colour baseline."""
